"""A port for a test's own processes."""

import random
import socket


def free_port() -> int:
    """A free port, not one that the kernel could give to an outgoing connection meanwhile."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(15000, 30000)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
