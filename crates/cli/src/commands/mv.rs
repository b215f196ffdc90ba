//! `onggi mv`.

use std::ffi::OsString;
use std::path::Path;

use anyhow::bail;
use onggi_vfs::{Errno, FileKind, FileSystem, RenameMode};

use crate::args::Mv;
use crate::commands::Desk;
use crate::commands::cp::copy_all;
use crate::commands::rm;
use crate::copy::How;
use crate::images::{context, same_image};
use crate::place::{ImagePath, Place};
use crate::report::At;
use crate::walk::{find, find_parent};

/// Moves.
pub(crate) fn run(args: &Mv, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let (target, sources) = args.places.split_last().expect("clap asks for two at least");
    let place = Place::parse(target);
    if let Place::Image(target) = &place {
        let fs = desk.images.of(target, true)?;
        let is_dir = find(&*fs, &target.path, true).is_ok_and(|attr| attr.kind == FileKind::Directory);
        if sources.len() > 1 && !is_dir {
            bail!("{target}: Not a directory");
        }
        for source in sources {
            let moved = match Place::parse(source) {
                Place::Image(from) if same_image(&from.image, &target.image) => {
                    rename(&*fs, &from, target, is_dir, args, desk)
                }
                from => move_across(source, &from, args.places.last().expect("two"), args, desk),
            };
            desk.complaints.note(moved);
        }
        return Ok(());
    }
    for source in sources {
        let moved = move_across(source, &Place::parse(source), target, args, desk);
        desk.complaints.note(moved);
    }
    Ok(())
}

fn rename(
    fs: &dyn FileSystem,
    from: &ImagePath,
    target: &ImagePath,
    into: bool,
    args: &Mv,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    let Some(name) = from.file_name() else {
        bail!("{from}: cannot be moved");
    };
    let (dir, old) = find_parent(fs, &from.path).at(from)?;
    fs.lookup(dir, &old).at(from)?;
    let to = if into { target.join(name) } else { target.clone() };
    let (new_dir, new) = find_parent(fs, &to.path).at(&to)?;
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    match fs.rename(&context(), dir, &old, new_dir, &new, mode) {
        Err(error) if args.no_clobber && error.errno() == Errno::EXIST => return Ok(()),
        done => done.at(format!("{from} to {to}"))?,
    }
    if args.verbose {
        writeln!(desk.out, "renamed '{from}' -> '{to}'")?;
    }
    Ok(())
}

/// Copies with everything kept, and then removes what was copied.
fn move_across(
    source: &OsString,
    from: &Place,
    target: &OsString,
    args: &Mv,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    if let Place::Image(from) = from {
        // Opened for writing before copying reads it.
        desk.images.of(from, true)?;
    }
    let how = How {
        recursive: true,
        preserve: true,
        archive: true,
        no_clobber: args.no_clobber,
        verbose: args.verbose,
        ..How::default()
    };
    let clean = copy_all(&[source.clone(), target.clone()], how, desk)?;
    if clean != [true] || args.no_clobber {
        // What was not copied whole stays where it is.
        return Ok(());
    }
    match from {
        Place::Image(from) => {
            let fs = desk.images.of(from, true)?;
            rm::remove(&*fs, from, desk)
        }
        Place::Host(path) => remove_from_host(path),
    }
}

fn remove_from_host(path: &Path) -> anyhow::Result<()> {
    let is_dir = path.symlink_metadata().at(path.display())?.is_dir();
    if is_dir { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.at(path.display())
}
