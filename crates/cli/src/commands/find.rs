//! `onggi find`.

use std::os::unix::ffi::OsStrExt;

use onggi_vfs::{Attr, FileKind, FileSystem};

use crate::args::Find;
use crate::commands::Desk;
use crate::commands::ls::text;
use crate::entry::{Entry, letter};
use crate::pattern;
use crate::place::{ImagePath, last_name};
use crate::report::At;
use crate::walk::{Trail, find, names};

struct Search<'a> {
    args: &'a Find,
    trail: Trail,
    found: Vec<Entry>,
}

/// Finds files.
pub(crate) fn run(args: &Find, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    for &kind in &args.kinds {
        anyhow::ensure!("fdlbcps".contains(kind), "-type {kind}: expected f, d, l, b, c, p or s");
    }
    let mut search = Search { args, trail: Trail::default(), found: Vec::new() };
    for text in &args.places {
        let place = ImagePath::parse(text);
        let fs = desk.images.of(&place, false)?;
        if let Some(attr) = desk.complaints.note(find(&*fs, &place.path, false).at(&place)) {
            search.visit(&*fs, &place, &attr, desk)?;
        }
    }
    if args.json {
        desk.json(&search.found)?;
    }
    Ok(())
}

impl Search<'_> {
    fn visit(
        &mut self,
        fs: &dyn FileSystem,
        place: &ImagePath,
        attr: &Attr,
        desk: &mut Desk<'_>,
    ) -> anyhow::Result<()> {
        if self.trail.depth() >= self.args.mindepth && self.matches(place, attr) {
            self.show(fs, place, attr, desk)?;
        }
        let deeper = self.args.maxdepth.is_none_or(|max| self.trail.depth() < max);
        if attr.kind != FileKind::Directory || !deeper {
            return Ok(());
        }
        if desk.complaints.note(self.trail.enter(attr.ino).at(place)).is_none() {
            return Ok(());
        }
        for name in desk.complaints.note(names(fs, attr.ino).at(place)).unwrap_or_default() {
            let below = place.join(&name.name);
            if let Some(attr) = desk.complaints.note(fs.getattr(name.ino).at(&below)) {
                self.visit(fs, &below, &attr, desk)?;
            }
        }
        self.trail.leave();
        Ok(())
    }

    fn matches(&self, place: &ImagePath, attr: &Attr) -> bool {
        let name = last_name(&place.path).unwrap_or(b"/");
        let letter = match letter(attr.kind) {
            '-' => 'f',
            letter => letter,
        };
        let by_name =
            self.args.name.as_ref().is_none_or(|pattern| pattern::matches(pattern.as_bytes(), name));
        let by_folded = self.args.iname.as_ref().is_none_or(|pattern| {
            pattern::matches(&pattern.as_bytes().to_ascii_lowercase(), &name.to_ascii_lowercase())
        });
        by_name && by_folded && (self.args.kinds.is_empty() || self.args.kinds.contains(&letter))
    }

    fn show(
        &mut self,
        fs: &dyn FileSystem,
        place: &ImagePath,
        attr: &Attr,
        desk: &mut Desk<'_>,
    ) -> anyhow::Result<()> {
        if self.args.json {
            let target = (attr.kind == FileKind::Symlink).then(|| fs.readlink(attr.ino).ok()).flatten();
            self.found.push(Entry::new(&place.to_bytes(), attr, target.as_deref()));
            return Ok(());
        }
        desk.out.write_all(&text(&place.to_bytes(), desk.terminal && !self.args.print0))?;
        desk.out.write_all(if self.args.print0 { b"\0" } else { b"\n" })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::try_out::{Trial, tree};

    fn find(args: &[&str]) -> String {
        Trial::new(tree()).ran("find", args).0
    }

    #[test]
    fn files_are_found() {
        assert_eq!(find(&["v"]), "v:/\nv:/.hidden\nv:/dir\nv:/dir/inner\nv:/file\nv:/link\n");
        assert_eq!(find(&["v", "--name", "*[e]"]), "v:/file\n");
        assert_eq!(find(&["v", "--iname", "*I*ER"]), "v:/dir/inner\n");
        assert_eq!(find(&["v", "--type", "d,l"]), "v:/\nv:/dir\nv:/link\n");
        assert_eq!(find(&["v:/dir", "--type", "f"]), "v:/dir/inner\n");
        assert_eq!(find(&["v", "--maxdepth", "0"]), "v:/\n");
        assert_eq!(find(&["v", "--mindepth", "2"]), "v:/dir/inner\n");
        assert_eq!(find(&["v:/dir", "--print0"]), "v:/dir\0v:/dir/inner\0");
    }
}
