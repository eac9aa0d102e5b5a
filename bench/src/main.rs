//! The workloads of the project, run beside their rivals.
fn main() {}
