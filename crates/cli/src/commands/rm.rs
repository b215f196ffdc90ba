//! `onggi rm`.

use anyhow::bail;
use onggi_vfs::{Errno, FileKind, FileSystem, Ino};

use crate::args::Rm;
use crate::commands::Desk;
use crate::images::context;
use crate::place::ImagePath;
use crate::report::{At, about};
use crate::walk::{Trail, find_parent, names};

/// Removes.
pub(crate) fn run(args: &Rm, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    for text in &args.places {
        let Some(place) = desk.complaints.note(ImagePath::parse_full(text)) else { continue };
        let fs = desk.images.of(&place, true)?;
        let removed = remove_one(args, &*fs, &place, desk);
        desk.complaints.note(removed);
    }
    Ok(())
}

fn remove_one(args: &Rm, fs: &dyn FileSystem, place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    if place.file_name().is_none() {
        bail!("{place}: cannot be removed");
    }
    let found = find_parent(fs, &place.path)
        .and_then(|(dir, name)| fs.lookup(dir, &name).map(|attr| (dir, name, attr)));
    let (dir, name, attr) = match found {
        Err(error) if args.force && matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        found => found.at(place)?,
    };
    let mut removal = Removal { fs, verbose: args.verbose, trail: Trail::default(), failed: false };
    if attr.kind != FileKind::Directory {
        return removal.unlink(dir, &name, place, desk);
    }
    if args.recursive {
        return removal.directory(dir, &name, attr.ino, place, desk);
    }
    if args.dir {
        return removal.rmdir(dir, &name, place, desk);
    }
    Err(about(Errno::ISDIR, place))
}

/// Removes a place with all that is in it.
pub(crate) fn remove(fs: &dyn FileSystem, place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let all = Rm { recursive: true, dir: false, force: false, verbose: false, places: Vec::new() };
    remove_one(&all, fs, place, desk)
}

struct Removal<'a> {
    fs: &'a dyn FileSystem,
    verbose: bool,
    trail: Trail,
    failed: bool,
}

impl Removal<'_> {
    fn said(&self, what: &str, place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
        if self.verbose {
            writeln!(desk.out, "removed {what}'{place}'")?;
        }
        Ok(())
    }

    fn unlink(&self, dir: Ino, name: &[u8], place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
        self.fs.unlink(&context(), dir, name).at(place)?;
        self.said("", place, desk)
    }

    fn rmdir(&self, dir: Ino, name: &[u8], place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
        self.fs.rmdir(&context(), dir, name).at(place)?;
        self.said("directory ", place, desk)
    }

    fn directory(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        place: &ImagePath,
        desk: &mut Desk<'_>,
    ) -> anyhow::Result<()> {
        self.trail.enter(ino).at(place)?;
        let outside = std::mem::take(&mut self.failed);
        for child in names(self.fs, ino).at(place)? {
            let below = place.join(&child.name);
            let removed = self.fs.getattr(child.ino).at(&below).and_then(|attr| match attr.kind {
                FileKind::Directory => self.directory(ino, &child.name, child.ino, &below, desk),
                _ => self.unlink(ino, &child.name, &below, desk),
            });
            self.failed |= desk.complaints.note(removed).is_none();
        }
        self.trail.leave();
        // What is left below has been complained of; the directory itself would only say so again.
        let removed = if self.failed { Ok(()) } else { self.rmdir(dir, name, place, desk) };
        self.failed |= outside;
        removed
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};

    #[test]
    fn things_go_away() {
        let trial = Trial::new(tree());
        let (_, said) = trial.ran("rm", &["v:/file", "v:/dir", "v:/nope", "v:/", "v:/dir/."]);
        assert_eq!(
            said,
            [
                "v:/dir: Is a directory",
                "v:/nope: No such file or directory",
                "v:/: cannot be removed",
                "v:/dir/.: cannot be removed"
            ]
        );
        assert!(trial.fs().lookup(trial.fs().root(), b"file").is_err());
        let (_, said) = trial.ran("rm", &["-f", "v:/nope"]);
        assert!(said.is_empty());
        let (_, said) = trial.ran("rm", &["-d", "v:/dir"]);
        assert_eq!(said, ["v:/dir: Directory not empty"]);
        let (out, said) = trial.ran("rm", &["-rv", "v:/dir"]);
        assert!(said.is_empty());
        assert_eq!(out, "removed 'v:/dir/inner'\nremoved directory 'v:/dir'\n");
    }
}
