//! The volumes that one command has open: each image once, however often it is named.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use onggi_vfs::{Context, FileSystem};

use crate::engine;
use crate::place::{ImagePath, shown};
use crate::quantity::now;
use crate::report::At;

/// An open volume.
struct Opened {
    /// The image, whichever way it was written.
    identity: PathBuf,
    shown: String,
    writable: bool,
    fs: Arc<dyn FileSystem>,
}

/// The open volumes of one command.
#[derive(Default)]
pub(crate) struct Images {
    opened: Vec<Opened>,
}

impl Images {
    fn identity(image: &OsStr) -> PathBuf {
        std::fs::canonicalize(image).unwrap_or_else(|_| PathBuf::from(image))
    }

    /// The volume in an image. One that is to be written must be opened so the first time.
    pub(crate) fn open(&mut self, image: &OsStr, write: bool) -> anyhow::Result<Arc<dyn FileSystem>> {
        let identity = Self::identity(image);
        if let Some(opened) = self.opened.iter().find(|opened| opened.identity == identity) {
            anyhow::ensure!(opened.writable || !write, "{} is already open for reading", opened.shown);
            return Ok(Arc::clone(&opened.fs));
        }
        let device = engine::open_device(image, !write)?;
        let fs = engine::open_volume(device, engine::file_command_options(!write))
            .map_err(|error| error.context(image.display().to_string()))?;
        let shown = shown(image.as_encoded_bytes());
        self.opened.push(Opened { identity, shown, writable: write, fs: Arc::clone(&fs) });
        Ok(fs)
    }

    /// The volume of a place.
    pub(crate) fn of(&mut self, place: &ImagePath, write: bool) -> anyhow::Result<Arc<dyn FileSystem>> {
        self.open(&place.image, write)
    }

    /// An open volume under a name, as if it had been opened.
    #[cfg(test)]
    pub(crate) fn with(volumes: &[(&str, Arc<dyn FileSystem>)]) -> Self {
        let opened = volumes.iter().map(|(name, fs)| Opened {
            identity: PathBuf::from(name),
            shown: (*name).to_owned(),
            writable: true,
            fs: Arc::clone(fs),
        });
        Self { opened: opened.collect() }
    }

    /// Writes everything home and closes. What a command did is durable only after this.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for opened in self.opened {
            result = result.and(opened.fs.unmount().at(&opened.shown));
        }
        result
    }
}

/// Whether two names are one image.
pub(crate) fn same_image(one: &OsStr, two: &OsStr) -> bool {
    Images::identity(one) == Images::identity(two)
}

/// Who does it, now: the user of this process.
pub(crate) fn context() -> Context {
    Context { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), now: now() }
}
