//! Lazy tensors: recording, lowering to StableHLO, caching, syncing and autograd.
