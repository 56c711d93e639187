"""Files that are written whole or not at all and read with care, and the memory that their contents may take."""
