"""Devices that a build of the library sees, and those of other machines, which ggml's RPC servers lend."""

from .listing import Device, devices

__all__ = ["Device", "devices"]
