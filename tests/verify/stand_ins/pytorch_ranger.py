"""A stand-in for a package that torch_optimizer imports, none of whose optimizers the scripts use."""


class Ranger: ...


class RangerQH: ...


class RangerVA: ...
