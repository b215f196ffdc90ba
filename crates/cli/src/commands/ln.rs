//! `onggi ln`.

use std::os::unix::ffi::OsStrExt;

use anyhow::bail;
use onggi_vfs::{Errno, FileKind, Node};

use crate::args::Ln;
use crate::commands::Desk;
use crate::images::{context, same_image};
use crate::place::{ImagePath, last_name, shown};
use crate::report::{At, about};
use crate::walk::{find, find_parent};

/// Makes a link.
pub(crate) fn run(args: &Ln, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let mut place = ImagePath::parse_full(&args.place)?;
    let fs = desk.images.of(&place, true)?;
    let cx = context();
    let source = if args.symbolic { None } else { Some(ImagePath::parse_full(&args.target)?) };
    let target = args.target.as_bytes();
    if find(&*fs, &place.path, true).is_ok_and(|attr| attr.kind == FileKind::Directory) {
        let Some(name) = last_name(source.as_ref().map_or(target, |source| &source.path)) else {
            bail!("{place}: Is a directory");
        };
        place = place.join(name);
    }
    let (dir, name) = find_parent(&*fs, &place.path).at(&place)?;
    let linked = match &source {
        Some(source) => {
            if !same_image(&source.image, &place.image) {
                return Err(about(Errno::XDEV, format!("{place} to {source}")));
            }
            let file = find(&*fs, &source.path, false).at(source)?;
            let there = fs.lookup(dir, &name).ok();
            if there.is_some_and(|there| there.ino == file.ino) {
                bail!("{source} and {place} are the same file");
            }
            if args.force {
                remove_name(&*fs, dir, &name).at(&place)?;
            }
            fs.link(&cx, file.ino, dir, &name)
        }
        None => {
            if args.force {
                remove_name(&*fs, dir, &name).at(&place)?;
            }
            fs.create(&cx, dir, &name, Node::Symlink(target), 0o777)
        }
    };
    linked.at(&place)?;
    if args.verbose {
        let arrow = if args.symbolic { "->" } else { "=>" };
        writeln!(desk.out, "'{place}' {arrow} '{}'", shown(target))?;
    }
    Ok(())
}

fn remove_name(fs: &dyn onggi_vfs::FileSystem, dir: onggi_vfs::Ino, name: &[u8]) -> onggi_vfs::Result<()> {
    match fs.unlink(&context(), dir, name) {
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};
    use crate::walk::find;

    #[test]
    fn links_are_made() {
        let trial = Trial::new(tree());
        assert!(trial.ran("ln", &["v:/file", "v:/hard"]).1.is_empty());
        assert_eq!(find(trial.fs(), b"/hard", false).unwrap().nlink, 2);
        assert_eq!(trial.ran("ln", &["v:/file", "v:/hard"]).1, ["v:/file and v:/hard are the same file"]);
        assert_eq!(trial.ran("ln", &["v:/dir", "v:/x"]).1, ["v:/x: Operation not permitted"]);
        assert!(trial.ran("ln", &["-s", "any:/thing", "v:/sym"]).1.is_empty());
        let sym = find(trial.fs(), b"/sym", false).unwrap();
        assert_eq!(trial.fs().readlink(sym.ino).unwrap(), b"any:/thing");
        assert_eq!(trial.ran("ln", &["-s", "x", "v:/sym"]).1, ["v:/sym: File exists"]);
        let (out, said) = trial.ran("ln", &["-sfv", "x", "v:/sym"]);
        assert_eq!((out.as_str(), said.len()), ("'v:/sym' -> 'x'\n", 0));
        assert!(trial.ran("ln", &["v:/file", "v:/dir"]).1.is_empty());
        assert_eq!(find(trial.fs(), b"/dir/file", false).unwrap().nlink, 3);
    }
}
