"""Architecture, loss and prior over data: what solvers and samplers work on."""
