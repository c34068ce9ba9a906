//! Modules, losses, optimizers, data-parallel training and data loading.
