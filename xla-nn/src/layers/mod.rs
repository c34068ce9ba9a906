//! Modules to build others from.

mod activation;
mod flatten;
mod linear;
mod sequential;

pub use activation::Relu;
pub use flatten::Flatten;
pub use linear::Linear;
pub use sequential::Sequential;
