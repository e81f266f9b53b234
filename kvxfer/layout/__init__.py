"""Layout room: pure integers. Two descriptors and two block tables in, byte ranges out."""
