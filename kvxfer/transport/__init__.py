"""The transport room: the C-like table, capabilities, registry and the loopback."""
