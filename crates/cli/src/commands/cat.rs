//! `onggi cat`.

use std::io::Write;

use onggi_vfs::{Errno, FileKind, FileSystem, Ino};

use crate::args::Cat;
use crate::commands::Desk;
use crate::images::context;
use crate::place::ImagePath;
use crate::report::At;
use crate::walk::find;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Writes files to the output.
pub(crate) fn run(args: &Cat, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    for text in &args.places {
        let Some(place) = desk.complaints.note(ImagePath::parse_full(text)) else { continue };
        let fs = desk.images.of(&place, false)?;
        let attr = find(&*fs, &place.path, true).and_then(|attr| match attr.kind {
            FileKind::Regular => Ok(attr),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        });
        let Some(attr) = desk.complaints.note(attr.at(&place)) else { continue };
        pour(&*fs, &place, attr.ino, desk.out)?;
    }
    Ok(())
}

/// Writes a file's contents.
pub(crate) fn pour(
    fs: &dyn FileSystem,
    place: &ImagePath,
    ino: Ino,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let cx = context();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        let len = fs.read(&cx, ino, offset, &mut buffer).at(place)?;
        if len == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..len]).at("write error")?;
        offset += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};

    #[test]
    fn contents_come_out() {
        let (out, said) = Trial::new(tree()).ran("cat", &["v:/link", "v:/dir", "v:/file"]);
        assert_eq!(said, ["v:/dir: Is a directory"]);
        assert_eq!(out.len(), 5 + 5000);
        assert!(out.starts_with("innerxxx"));
    }
}
