//! Changes in place, through a view too.

use super::Tensor;
use crate::trace;
use crate::view::Origin;
use std::panic::Location;
use xla_core::{Error, Result};

impl Tensor {
    /// Makes `value` the value of this tensor: of its storage, or of the part of it that this view
    /// shows. `value` has the tensor's type.
    #[track_caller]
    pub(crate) fn assign(&self, op: &'static str, value: Tensor) -> Result<Tensor> {
        let location = Location::caller();
        let error = |reason: &str, advice| Error::Autograd {
            op,
            reason: reason.into(),
            advice,
            at: location.into(),
        };
        let origin = self.origin();
        if trace::is_grad_enabled() {
            let leaf = match origin {
                Origin::Storage => self.storage.lock().leaf.is_some(),
                Origin::Leaf => true,
                Origin::Detached => false,
            };
            if leaf {
                return Err(error(
                    "a leaf that requires a gradient is changed in place",
                    "wrap the change in no_grad(|| …)",
                ));
            }
            // The base has a history of its own, or none, in which this value is no step.
            if matches!(origin, Origin::Detached) && value.requires_grad() {
                return Err(error(
                    "a detached tensor would take a value that requires a gradient",
                    "change a copy() of it, or wrap the change in no_grad(|| …)",
                ));
            }
        }
        let whole = self.write_back(value).map_err(|e| e.at(location))?;
        let rebind = || trace::rebind(op, &self.storage, &whole, location);
        if matches!(origin, Origin::Detached) {
            // What autograd does not see is no change to it.
            trace::no_grad(rebind)?;
        } else {
            rebind()?;
        }
        Ok(self.clone())
    }
}
