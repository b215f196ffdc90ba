//! `onggi mkdir`.

use onggi_vfs::{Errno, FileKind, FileSystem, Node, SetAttr};

use crate::args::Mkdir;
use crate::commands::Desk;
use crate::copy::{Side, Volume};
use crate::images::context;
use crate::place::{ImagePath, join};
use crate::report::{At, about};
use crate::walk::{find, find_parent};

/// Makes directories.
pub(crate) fn run(args: &Mkdir, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    for text in &args.places {
        let Some(place) = desk.complaints.note(ImagePath::parse_full(text)) else { continue };
        let fs = desk.images.of(&place, true)?;
        let made = if args.parents {
            make_all(args, &*fs, &place, desk)
        } else {
            make(args, &*fs, &place, true, desk)
        };
        desk.complaints.note(made);
    }
    Ok(())
}

fn make(
    args: &Mkdir,
    fs: &dyn FileSystem,
    place: &ImagePath,
    last: bool,
    desk: &mut Desk<'_>,
) -> anyhow::Result<()> {
    let (dir, name) = find_parent(fs, &place.path).at(place)?;
    let perm = Volume::new(fs).mask(0o777);
    let attr = fs.create(&context(), dir, &name, Node::Directory, perm).at(place)?;
    if let Some(mode) = args.mode.filter(|_| last) {
        fs.setattr(&context(), attr.ino, &SetAttr { perm: Some(mode), ..SetAttr::default() }).at(place)?;
    }
    if args.verbose {
        writeln!(desk.out, "created directory '{place}'")?;
    }
    Ok(())
}

fn make_all(args: &Mkdir, fs: &dyn FileSystem, place: &ImagePath, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let parts: Vec<&[u8]> = place.path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
    let mut path = b"/".to_vec();
    for (number, part) in parts.iter().enumerate() {
        path = join(&path, part);
        let here = ImagePath { image: place.image.clone(), path: path.clone() };
        match find(fs, &path, true) {
            Ok(attr) if attr.kind == FileKind::Directory => {}
            Ok(_) => return Err(about(Errno::NOTDIR, &here)),
            Err(error) if error.errno() == Errno::NOENT => {
                make(args, fs, &here, number + 1 == parts.len(), desk)?;
            }
            Err(error) => return Err(error).at(&here),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};
    use crate::walk::find;

    #[test]
    fn directories_are_made() {
        let trial = Trial::new(tree());
        let (_, said) = trial.ran("mkdir", &["-m", "700", "v:/new", "v:/dir", "v:/no/such", "plain"]);
        assert_eq!(
            said,
            ["v:/dir: File exists", "v:/no/such: No such file or directory", "plain: expected IMAGE:/path"]
        );
        assert_eq!(find(trial.fs(), b"/new", false).unwrap().perm, 0o700);
        let (out, said) = trial.ran("mkdir", &["-pv", "v:/dir/a//b/", "v:/file/x"]);
        assert_eq!(out, "created directory 'v:/dir/a'\ncreated directory 'v:/dir/a/b'\n");
        assert_eq!(said, ["v:/file: Not a directory"]);
    }
}
