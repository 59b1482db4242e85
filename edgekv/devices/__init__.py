"""List the devices that a build of the library sees, and devices of other machines, which ggml's RPC servers lend."""

from .listing import Device, devices

__all__ = ["Device", "devices"]
