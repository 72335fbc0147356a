"""Episodes as pictures: GIF, MP4, and the process that draws beside training."""
