"""Commands that measure: each prints the numbers that the README quotes."""
