//! Errors as they cross the door: a number for programs, a sentence for people.

use std::fmt;
use std::sync::Arc;

pub use rustix::io::Errno;

/// What an engine answers when it cannot do what was asked.
#[derive(Clone)]
pub struct Error {
    errno: Errno,
    detail: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The result of every call through the door.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its reason: which structure, where, which rule.
    pub fn with_detail(errno: Errno, detail: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { errno, detail: Some(Arc::new(detail)) }
    }

    /// The number that the caller of a system call would see.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The reason, where there is more to say than the number says.
    #[must_use]
    pub fn detail(&self) -> Option<&(dyn std::error::Error + Send + Sync)> {
        self.detail.as_deref()
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self { errno, detail: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{detail}"),
            None => write!(f, "{}", self.errno),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.errno)?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}
