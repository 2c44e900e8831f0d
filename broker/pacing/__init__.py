"""Work that happens later, or a little at a time, so that the loop goes on."""
