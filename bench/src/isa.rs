//! The instruction set that Wireloom's kernels are capped to, in this process and those that it starts.

use std::sync::OnceLock;
use wireloom_ws::mask::isa;

static CAPPED: OnceLock<String> = OnceLock::new();

/// Caps the kernels from now on.
///
/// # Errors
/// No instruction set has this name.
pub(crate) fn cap(name: &str) -> Result<(), String> {
    isa::cap(name.parse().map_err(|error: isa::UnknownIsa| error.to_string())?);
    _ = CAPPED.set(name.to_owned());
    Ok(())
}

/// The name of the cap, if there is one.
pub(crate) fn capped() -> Option<&'static str> {
    CAPPED.get().map(String::as_str)
}
