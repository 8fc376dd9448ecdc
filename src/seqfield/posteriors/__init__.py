"""What is made of a fit: Laplace's method, the evidence, and what drawn functions leave open."""
