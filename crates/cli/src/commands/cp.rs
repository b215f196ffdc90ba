//! `onggi cp`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use onggi_vfs::{Attr, Errno, FileKind, FileSystem, Ino};

use crate::args::Cp;
use crate::commands::Desk;
use crate::copy::{Copier, Host, How, Side, Volume};
use crate::images::same_image;
use crate::place::{ImagePath, Place, join, last_name, shown};
use crate::progress::Progress;
use crate::report::{At, about};
use crate::walk::{find, find_parent};

/// Where copies go.
enum Target {
    Host { path: PathBuf, dir: bool },
    Image { place: ImagePath, fs: Arc<dyn FileSystem>, there: Option<Attr> },
}

/// Copies.
pub(crate) fn run(args: &Cp, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let how = How {
        recursive: args.recursive || args.archive,
        preserve: args.preserve || args.archive,
        archive: args.archive,
        no_clobber: args.no_clobber,
        verbose: args.verbose,
        ..How::default()
    };
    copy_all(&args.places, how, desk).map(drop)
}

/// Copies all but the last place to the last; says which of them were copied without a complaint.
pub(crate) fn copy_all(places: &[OsString], how: How, desk: &mut Desk<'_>) -> anyhow::Result<Vec<bool>> {
    let (target, sources) = places.split_last().expect("clap asks for two at least");
    let target = open_target(Place::parse(target), desk)?;
    let many = sources.len() > 1;
    if many && !target.is_dir() {
        bail!("{}: Not a directory", target.text());
    }
    let progress = Progress::new(how.recursive && !how.verbose);
    let mut clean = Vec::new();
    for source in sources {
        let before = desk.complaints.count();
        if let Err(error) = copy_one(&Place::parse(source), &target, how, &progress, desk) {
            if error.downcast_ref::<std::io::Error>().is_some() {
                return Err(error);
            }
            desk.complaints.add(&error);
        }
        clean.push(desk.complaints.count() == before);
    }
    Ok(clean)
}

fn open_target(place: Place, desk: &mut Desk<'_>) -> anyhow::Result<Target> {
    match place {
        Place::Host(path) => {
            let dir = path.is_dir();
            Ok(Target::Host { path, dir })
        }
        Place::Image(place) => {
            let fs = desk.images.of(&place, true)?;
            let there = match find(&*fs, &place.path, true) {
                Ok(attr) => Some(attr),
                Err(error) if error.errno() == Errno::NOENT => None,
                Err(error) => return Err(error).at(&place),
            };
            Ok(Target::Image { place, fs, there })
        }
    }
}

impl Target {
    fn is_dir(&self) -> bool {
        match self {
            Self::Host { dir, .. } => *dir,
            Self::Image { there, .. } => there.is_some_and(|attr| attr.kind == FileKind::Directory),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Host { path, .. } => path.display().to_string(),
            Self::Image { place, .. } => place.to_string(),
        }
    }
}

fn copy_one(
    source: &Place,
    target: &Target,
    how: How,
    progress: &Progress,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    match (source, target) {
        (Place::Host(from), Target::Host { path, .. }) => {
            bail!(
                "{} and {}: neither is in an image; this is a job for cp(1)",
                from.display(),
                path.display()
            )
        }
        (Place::Host(path), Target::Image { place, fs, there }) => {
            // An image path that is not spelt out is a likely slip.
            if !path.exists() && !path.is_symlink() {
                return Err(about(Errno::NOENT, path.display()));
            }
            let from = From {
                side: &Host,
                at: path.clone(),
                text: path.as_os_str().as_bytes().to_vec(),
                name: host_name(path),
            };
            into_image(from, place, &**fs, there.as_ref(), how, progress, desk)
        }
        (Place::Image(from), Target::Host { path, dir }) => {
            let fs = desk.images.of(from, false)?;
            let side = Volume::new(&*fs);
            let from = image_source(&side, &*fs, from, how)?;
            into_host(from, path, *dir, how, progress, desk)
        }
        (Place::Image(from), Target::Image { place, fs, there }) => {
            let same_tree = same_image(&from.image, &place.image);
            let from_fs = desk.images.of(from, same_tree)?;
            let side = Volume::new(&*from_fs);
            let from = image_source(&side, &*from_fs, from, how)?;
            into_image(from, place, &**fs, there.as_ref(), How { same_tree, ..how }, progress, desk)
        }
    }
}

/// One source: its side, itself, how it is called, and the name that it brings along.
struct From<'a, S: Side> {
    side: &'a S,
    at: S::At,
    text: Vec<u8>,
    /// `None` for `.`, `..` and a root: what is in it goes, not itself.
    name: Option<Vec<u8>>,
}

fn host_name(path: &Path) -> Option<Vec<u8>> {
    last_name(path.as_os_str().as_bytes()).map(<[u8]>::to_vec)
}

fn image_source<'a>(
    side: &'a Volume<'a>,
    fs: &dyn FileSystem,
    place: &ImagePath,
    how: How,
) -> anyhow::Result<From<'a, Volume<'a>>> {
    let at = find(fs, &place.path, !how.recursive).at(place)?.ino;
    Ok(From { side, at, text: place.to_bytes(), name: place.file_name().map(<[u8]>::to_vec) })
}

fn into_image<S: Side>(
    from: From<'_, S>,
    place: &ImagePath,
    fs: &dyn FileSystem,
    there: Option<&Attr>,
    how: How,
    progress: &Progress,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    let to = Volume::new(fs);
    if how.same_tree {
        refuse_below_itself(&from, place, fs, there)?;
    }
    let mut copier = Copier::new(from.side, &to, how, progress, desk.complaints, desk.out);
    match (there, from.name) {
        (Some(dir), Some(name)) if dir.kind == FileKind::Directory => {
            let to_text = place.join(&name).to_bytes();
            copier.copy(&from.at, &dir.ino, &name, from.text, to_text)
        }
        (Some(dir), None) if dir.kind == FileKind::Directory => {
            anyhow::ensure!(how.recursive, "-r not given; omitting directory {}", shown(&from.text));
            copier.merge(&from.at, &dir.ino, from.text, place.to_bytes())
        }
        _ => {
            if place.path.ends_with(b"/") && there.is_none() && !how.recursive {
                return Err(about(Errno::NOTDIR, place));
            }
            let (dir, name) = match there {
                // Through a symbolic link: what is behind it is overwritten.
                Some(_) => real_parent(fs, &place.path, 0).at(place)?,
                None => find_parent(fs, &place.path).at(place)?,
            };
            copier.copy(&from.at, &dir, &name, from.text, place.to_bytes())
        }
    }
}

/// The directory and name behind all symbolic links at a path's end.
fn real_parent(fs: &dyn FileSystem, path: &[u8], links: u32) -> onggi_vfs::Result<(Ino, Vec<u8>)> {
    let (dir, name) = find_parent(fs, path)?;
    let attr = fs.lookup(dir, &name)?;
    if attr.kind != FileKind::Symlink {
        return Ok((dir, name));
    }
    if links >= 40 {
        return Err(Errno::LOOP.into());
    }
    let target = fs.readlink(attr.ino)?;
    let next = if target.starts_with(b"/") {
        target
    } else {
        let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        join(&path[..end], &target)
    };
    real_parent(fs, &next, links + 1)
}

/// Refuses to copy a directory to a place below itself.
fn refuse_below_itself<S: Side>(
    from: &From<'_, S>,
    place: &ImagePath,
    fs: &dyn FileSystem,
    there: Option<&Attr>,
) -> anyhow::Result<()> {
    let source = from.side.meta(&from.at).at(shown(&from.text))?;
    if source.attr.kind != FileKind::Directory {
        return Ok(());
    }
    let mut dir = match there {
        Some(attr) if attr.kind == FileKind::Directory => attr.ino,
        _ => find_parent(fs, &place.path).at(place)?.0,
    };
    for _ in 0..crate::walk::DEPTH_MAX {
        anyhow::ensure!(dir != source.attr.ino, "cannot copy {} into itself, {place}", shown(&from.text));
        if dir == fs.root() {
            return Ok(());
        }
        dir = fs.lookup(dir, b"..").at(place)?.ino;
    }
    Err(about(Errno::LOOP, place))
}

fn into_host<S: Side>(
    from: From<'_, S>,
    path: &Path,
    dir: bool,
    how: How,
    progress: &Progress,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    let mut copier = Copier::new(from.side, &Host, how, progress, desk.complaints, desk.out);
    let text = |path: &Path| path.as_os_str().as_bytes().to_vec();
    match (dir, from.name) {
        (true, Some(name)) => {
            let to_text = join(&text(path), &name);
            copier.copy(&from.at, &path.to_path_buf(), &name, from.text, to_text)
        }
        (true, None) => {
            anyhow::ensure!(how.recursive, "-r not given; omitting directory {}", shown(&from.text));
            copier.merge(&from.at, &path.to_path_buf(), from.text, text(path))
        }
        (false, _) => {
            let real =
                if path.is_symlink() { path.canonicalize().at(path.display())? } else { path.to_owned() };
            let Some(name) = host_name(&real) else {
                return Err(about(Errno::NOENT, path.display()));
            };
            let parent = match real.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            };
            copier.copy(&from.at, &parent, &name, from.text, text(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use onggi_vfs::{Context, FileKind, FileSystem, Timestamp};

    use crate::commands::try_out::{Trial, tree};
    use crate::walk::find;

    fn contents(fs: &dyn FileSystem, path: &str) -> Vec<u8> {
        let attr = find(fs, path.as_bytes(), true).unwrap();
        let cx = Context { uid: 0, gid: 0, now: Timestamp::default() };
        let mut data = vec![0; usize::try_from(attr.size).unwrap()];
        fs.read(&cx, attr.ino, 0, &mut data).unwrap();
        data
    }

    #[test]
    fn copies_within_and_between_volumes() {
        let trial = Trial::new(tree());
        assert!(trial.ran("cp", &["v:/file", "v:/dir/inner", "v:/copy"]).1 == ["v:/copy: Not a directory"]);
        assert!(trial.ran("cp", &["v:/link", "v:/copy"]).1.is_empty());
        assert_eq!(contents(trial.fs(), "/copy"), b"inner", "a link is followed");
        assert!(trial.ran("cp", &["v:/file", "v:/copy"]).1.is_empty());
        assert_eq!(contents(trial.fs(), "/copy").len(), 5000, "and a file overwritten");
        assert!(trial.ran("cp", &["-n", "v:/dir/inner", "v:/copy"]).1.is_empty());
        assert_eq!(contents(trial.fs(), "/copy").len(), 5000);
        let (out, said) = trial.ran("cp", &["-av", "v:/dir", "v:/link", "w:/"]);
        assert!(said.is_empty());
        assert_eq!(out, "'v:/dir' -> 'w:/dir'\n'v:/dir/inner' -> 'w:/dir/inner'\n'v:/link' -> 'w:/link'\n");
        assert_eq!(contents(trial.other(), "/link"), b"inner");
        assert_eq!(find(trial.other(), b"/link", false).unwrap().kind, FileKind::Symlink);
        let (inner, copied) = (
            find(trial.fs(), b"/dir/inner", true).unwrap(),
            find(trial.other(), b"/dir/inner", true).unwrap(),
        );
        assert_eq!((copied.mtime, copied.perm), (inner.mtime, inner.perm));
    }

    #[test]
    fn what_cannot_be_copied_is_said() {
        let trial = Trial::new(tree());
        for (args, said) in [
            (&["v:/dir", "w:/"][..], "-r not given; omitting directory v:/dir"),
            (&["v:/file", "v:/file"], "v:/file and v:/file are the same file"),
            (&["v:/file", "v:/none/x"], "v:/none/x: No such file or directory"),
            (&["v:/none", "w:/"], "v:/none: No such file or directory"),
            (&["-r", "v:/dir", "v:/file"], "v:/file: cannot overwrite non-directory with directory"),
            (&["-r", "v:/dir", "v:/dir"], "cannot copy v:/dir into itself, v:/dir"),
            (&["-r", "v:/dir", "v:/dir/new"], "cannot copy v:/dir into itself, v:/dir/new"),
            (&["-r", "v:/", "v:/dir"], "cannot copy v:/ into itself, v:/dir"),
        ] {
            assert_eq!(trial.ran("cp", args).1, [said], "{args:?}");
        }
    }

    #[test]
    fn a_directory_and_its_contents_are_two_things() {
        let trial = Trial::new(tree());
        assert!(trial.ran("cp", &["-r", "v:/dir/.", "w:/"]).1.is_empty());
        assert_eq!(contents(trial.other(), "/inner"), b"inner");
        assert!(trial.ran("cp", &["-r", "v:/dir", "w:/new"]).1.is_empty());
        assert_eq!(contents(trial.other(), "/new/inner"), b"inner");
        assert!(trial.ran("cp", &["-r", "v:/dir", "w:/new"]).1.is_empty());
        assert_eq!(contents(trial.other(), "/new/dir/inner"), b"inner");
    }
}
