"""The parameters that an optimizer holds, and the modules that own them."""
