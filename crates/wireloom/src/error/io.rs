//! Errors of the operating system, with their text.

use std::fmt;
use std::io;
use std::sync::Arc;

/// An error of the operating system or of a transport. It can be cloned; two are equal when their kinds are.
#[derive(Clone, Debug)]
pub struct IoError(Arc<io::Error>);

impl IoError {
    /// Its kind.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }

    /// The error itself, with its code where the operating system gave one.
    pub fn get_ref(&self) -> &io::Error {
        &self.0
    }
}

impl PartialEq for IoError {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }
}

impl Eq for IoError {}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for IoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl From<io::Error> for IoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl From<io::ErrorKind> for IoError {
    fn from(kind: io::ErrorKind) -> Self {
        io::Error::from(kind).into()
    }
}
