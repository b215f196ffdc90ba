//! `onggi stat`.

use std::io::Write;

use onggi_vfs::{Attr, FileKind};

use crate::args::Stat;
use crate::commands::Desk;
use crate::entry::{Entry, kind_name, mode_text};
use crate::place::{ImagePath, shown};
use crate::quantity::long_time;
use crate::report::At;
use crate::walk::find;

/// Says all about files.
pub(crate) fn run(args: &Stat, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for text in &args.places {
        let place = ImagePath::parse(text);
        let fs = desk.images.of(&place, false)?;
        let found = find(&*fs, &place.path, args.dereference).at(&place);
        let Some(attr) = desk.complaints.note(found) else { continue };
        let target = (attr.kind == FileKind::Symlink).then(|| fs.readlink(attr.ino).ok()).flatten();
        if args.json {
            entries.push(Entry::new(&place.to_bytes(), &attr, target.as_deref()));
        } else {
            show(&place, &attr, target.as_deref(), desk.out)?;
        }
    }
    if args.json {
        desk.json(&entries)?;
    }
    Ok(())
}

fn show(place: &ImagePath, attr: &Attr, target: Option<&[u8]>, out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "  File: {place}")?;
    if let Some(target) = target {
        write!(out, " -> {}", shown(target))?;
    }
    writeln!(
        out,
        "\n  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}",
        attr.size,
        attr.blocks,
        attr.block_size,
        if attr.kind == FileKind::Regular && attr.size == 0 {
            "regular empty file"
        } else {
            kind_name(attr.kind)
        }
    )?;
    write!(out, " Inode: {:<15} Links: {}", attr.ino.0, attr.nlink)?;
    if matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice) {
        write!(out, "     Device type: {},{}", attr.rdev.0, attr.rdev.1)?;
    }
    writeln!(
        out,
        "\nAccess: ({:04o}/{})  Uid: {:5}   Gid: {:5}",
        attr.perm,
        mode_text(attr.kind, attr.perm),
        attr.uid,
        attr.gid
    )?;
    for (name, time) in
        [("Access", attr.atime), ("Modify", attr.mtime), ("Change", attr.ctime), (" Birth", attr.crtime)]
    {
        writeln!(out, "{name}: {}", long_time(time))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};

    #[test]
    fn all_about_a_file() {
        let (out, _) = Trial::new(tree()).ran("stat", &["v:/file"]);
        assert!(out.starts_with("  File: v:/file\n  Size: 5000 "), "{out}");
        assert!(out.contains("(0640/-rw-r-----)  Uid:     5   Gid:     6"), "{out}");
        let (out, _) = Trial::new(tree()).ran("stat", &["v:/link"]);
        assert!(out.contains("v:/link -> dir/inner") && out.contains("symbolic link"), "{out}");
        let (out, _) = Trial::new(tree()).ran("stat", &["-L", "--json", "v:/link"]);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value[0]["type"], "regular file");
        let (out, said) = Trial::new(tree()).ran("stat", &["v:/x"]);
        assert_eq!((out.as_str(), &said[..]), ("", &["v:/x: No such file or directory".to_owned()][..]));
    }
}
