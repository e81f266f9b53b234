"""The wire room: bytes to messages and back. The only room that knows the encoding."""
