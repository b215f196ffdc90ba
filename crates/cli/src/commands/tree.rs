//! `onggi tree`.

use onggi_vfs::{Attr, FileKind, FileSystem};
use serde::Serialize;

use crate::args::Tree;
use crate::commands::Desk;
use crate::commands::ls::text;
use crate::entry::Entry;
use crate::place::ImagePath;
use crate::report::At;
use crate::walk::{Trail, find, names};

/// A file for programs, with what is in it.
#[derive(Serialize)]
struct Branch {
    #[serde(flatten)]
    entry: Entry,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<Branch>>,
}

struct Drawing<'a> {
    args: &'a Tree,
    fs: &'a dyn FileSystem,
    trail: Trail,
    directories: u64,
    files: u64,
}

/// Draws a tree.
pub(crate) fn run(args: &Tree, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let place = ImagePath::parse(&args.place);
    let fs = desk.images.of(&place, false)?;
    let attr = find(&*fs, &place.path, true).at(&place)?;
    let mut drawing = Drawing { args, fs: &*fs, trail: Trail::default(), directories: 0, files: 0 };
    if args.json {
        let branch = drawing.branch(&place, &place.to_bytes(), &attr, desk);
        return desk.json(&branch);
    }
    desk.out.write_all(&text(&place.to_bytes(), desk.terminal))?;
    writeln!(desk.out)?;
    if attr.kind == FileKind::Directory {
        drawing.draw(&place, &attr, "", desk)?;
    }
    let plural =
        |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    write!(desk.out, "\n{}", plural(drawing.directories, "directory", "directories"))?;
    if !args.directories {
        write!(desk.out, ", {}", plural(drawing.files, "file", "files"))?;
    }
    writeln!(desk.out)?;
    Ok(())
}

impl Drawing<'_> {
    /// What a directory shows; nothing where it is too deep or broken.
    fn children(&mut self, place: &ImagePath, dir: &Attr, desk: &mut Desk<'_>) -> Vec<(Vec<u8>, Attr)> {
        let mut children = Vec::new();
        for name in desk.complaints.note(names(self.fs, dir.ino).at(place)).unwrap_or_default() {
            if name.name.starts_with(b".") && !self.args.all {
                continue;
            }
            let attr = self.fs.getattr(name.ino).at(place.join(&name.name));
            let Some(attr) = desk.complaints.note(attr) else { continue };
            if attr.kind == FileKind::Directory {
                self.directories += 1;
            } else if self.args.directories {
                continue;
            } else {
                self.files += 1;
            }
            children.push((name.name, attr));
        }
        children
    }

    /// Whether to look into a directory, which is then on the trail.
    fn enter(&mut self, place: &ImagePath, dir: &Attr, desk: &mut Desk<'_>) -> bool {
        self.args.level.is_none_or(|level| self.trail.depth() < level)
            && desk.complaints.note(self.trail.enter(dir.ino).at(place)).is_some()
    }

    fn draw(
        &mut self,
        place: &ImagePath,
        dir: &Attr,
        indent: &str,
        desk: &mut Desk<'_>,
    ) -> anyhow::Result<()> {
        if !self.enter(place, dir, desk) {
            return Ok(());
        }
        let children = self.children(place, dir, desk);
        let count = children.len();
        for (number, (name, attr)) in children.into_iter().enumerate() {
            let (arm, below) =
                if number + 1 == count { ("└── ", "    ") } else { ("├── ", "│   ") };
            write!(desk.out, "{indent}{arm}")?;
            desk.out.write_all(&text(&name, desk.terminal))?;
            if attr.kind == FileKind::Symlink
                && let Ok(target) = self.fs.readlink(attr.ino)
            {
                write!(desk.out, " -> ")?;
                desk.out.write_all(&text(&target, desk.terminal))?;
            }
            writeln!(desk.out)?;
            if attr.kind == FileKind::Directory {
                self.draw(&place.join(&name), &attr, &format!("{indent}{below}"), desk)?;
            }
        }
        self.trail.leave();
        Ok(())
    }

    fn branch(&mut self, place: &ImagePath, name: &[u8], attr: &Attr, desk: &mut Desk<'_>) -> Branch {
        let target = (attr.kind == FileKind::Symlink).then(|| self.fs.readlink(attr.ino).ok()).flatten();
        let mut children = None;
        if attr.kind == FileKind::Directory && self.enter(place, attr, desk) {
            let names = self.children(place, attr, desk);
            children = Some(
                names.iter().map(|(name, attr)| self.branch(&place.join(name), name, attr, desk)).collect(),
            );
            self.trail.leave();
        }
        Branch { entry: Entry::new(name, attr, target.as_deref()), children }
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};

    #[test]
    fn a_tree_is_drawn() {
        let (out, _) = Trial::new(tree()).ran("tree", &["v"]);
        assert_eq!(
            out,
            "v:/\n├── dir\n│   └── inner\n├── file\n└── link -> dir/inner\n\n1 directory, 3 files\n"
        );
        let (out, _) = Trial::new(tree()).ran("tree", &["-d", "v:/"]);
        assert_eq!(out, "v:/\n└── dir\n\n1 directory\n");
        let (out, _) = Trial::new(tree()).ran("tree", &["-a", "-L", "1", "v:/"]);
        assert_eq!(
            out,
            "v:/\n├── .hidden\n├── dir\n├── file\n└── link -> dir/inner\n\n1 directory, 3 files\n"
        );
    }

    #[test]
    fn a_tree_for_programs() {
        let (out, _) = Trial::new(tree()).ran("tree", &["--json", "v:/"]);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["children"][0]["children"][0]["name"], "inner");
    }
}
