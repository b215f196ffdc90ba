//! `onggi ls`.

use std::cmp::Reverse;
use std::io::Write;

use onggi_vfs::{Attr, FileKind, FileSystem};
use serde::Serialize;

use crate::args::Ls;
use crate::commands::Desk;
use crate::entry::{Entry, mode_text};
use crate::place::{ImagePath, shown};
use crate::quantity::{human_size, short_time};
use crate::report::At;
use crate::walk::{Trail, find, names};

/// Columns of a terminal that does not tell.
const WIDTH: usize = 80;

/// A name to list.
struct Row {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

/// A directory for programs.
#[derive(Serialize)]
struct Listing {
    path: String,
    entries: Vec<Entry>,
}

/// Lists what is named: files first, then each directory.
pub(crate) fn run(args: &Ls, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let mut list =
        List { args, listings: Vec::new(), first: true, titles: args.recursive || args.places.len() > 1 };
    let mut files = Vec::new();
    let mut dirs = Vec::new();
    for text in &args.places {
        let place = ImagePath::parse(text);
        let fs = desk.images.of(&place, false)?;
        // As ls: through a link on the command line, unless the link itself is what -l or -d shows.
        let follow = !args.long && !args.directory;
        let Some(attr) = desk.complaints.note(find(&*fs, &place.path, follow).at(&place)) else { continue };
        if attr.kind == FileKind::Directory && !args.directory {
            dirs.push((place, attr, fs));
        } else {
            let target = (attr.kind == FileKind::Symlink).then(|| fs.readlink(attr.ino).ok()).flatten();
            files.push(Row { name: place.to_bytes(), attr, target });
        }
    }
    if !files.is_empty() {
        list.sort(&mut files);
        list.show(None, &files, desk)?;
    }
    list.order(&mut dirs, |(place, attr, _)| (place.to_bytes(), *attr));
    for (place, attr, fs) in dirs {
        list.directory(&*fs, &place, &attr, &mut Trail::default(), desk)?;
    }
    if args.json {
        desk.json(&list.listings)?;
    }
    Ok(())
}

struct List<'a> {
    args: &'a Ls,
    listings: Vec<Listing>,
    first: bool,
    titles: bool,
}

impl List<'_> {
    fn order<T>(&self, rows: &mut [T], key: impl Fn(&T) -> (Vec<u8>, Attr)) {
        rows.sort_by_cached_key(|row| {
            let (name, attr) = key(row);
            let rank = if self.args.by_time {
                Some((Reverse(attr.mtime.sec), Reverse(u64::from(attr.mtime.nsec))))
            } else if self.args.by_size {
                Some((Reverse(0), Reverse(attr.size)))
            } else {
                None
            };
            (rank, name)
        });
        if self.args.reverse {
            rows.reverse();
        }
    }

    fn sort(&self, rows: &mut [Row]) {
        self.order(rows, |row| (row.name.clone(), row.attr));
    }

    fn directory(
        &mut self,
        fs: &dyn FileSystem,
        place: &ImagePath,
        dir: &Attr,
        trail: &mut Trail,
        desk: &mut Desk<'_>,
    ) -> anyhow::Result<()> {
        if let Err(error) = trail.enter(dir.ino).at(place) {
            desk.complaints.add(&error);
            return Ok(());
        }
        let names = desk.complaints.note(names(fs, dir.ino).at(place)).unwrap_or_default();
        let mut rows = Vec::new();
        if self.args.all {
            for dots in [&b"."[..], b".."] {
                if let Ok(attr) = fs.lookup(dir.ino, dots) {
                    rows.push(Row { name: dots.to_vec(), attr, target: None });
                }
            }
        }
        for name in names {
            if name.name.starts_with(b".") && !self.args.all && !self.args.almost_all {
                continue;
            }
            let attr = fs.getattr(name.ino).at(place.join(&name.name));
            let Some(attr) = desk.complaints.note(attr) else { continue };
            let target = (attr.kind == FileKind::Symlink).then(|| fs.readlink(attr.ino).ok()).flatten();
            rows.push(Row { name: name.name, attr, target });
        }
        self.sort(&mut rows);
        self.show(Some(place), &rows, desk)?;
        if self.args.recursive {
            for row in rows {
                if row.attr.kind == FileKind::Directory && row.name != b"." && row.name != b".." {
                    self.directory(fs, &place.join(&row.name), &row.attr, trail, desk)?;
                }
            }
        }
        trail.leave();
        Ok(())
    }

    fn show(&mut self, dir: Option<&ImagePath>, rows: &[Row], desk: &mut Desk<'_>) -> anyhow::Result<()> {
        if self.args.json {
            let entries = rows.iter().map(|row| Entry::new(&row.name, &row.attr, row.target.as_deref()));
            let path =
                dir.map(|dir| String::from_utf8_lossy(&dir.to_bytes()).into_owned()).unwrap_or_default();
            self.listings.push(Listing { path, entries: entries.collect() });
            return Ok(());
        }
        if !self.first {
            writeln!(desk.out)?;
        }
        self.first = false;
        if let Some(dir) = dir
            && self.titles
        {
            desk.out.write_all(&text(&dir.to_bytes(), desk.terminal))?;
            writeln!(desk.out, ":")?;
        }
        if self.args.long {
            if dir.is_some() {
                let units: u64 = rows.iter().map(|row| row.attr.blocks).fold(0, u64::saturating_add);
                writeln!(desk.out, "total {}", self.amount(units.saturating_mul(512), units.div_ceil(2)))?;
            }
            return self.show_long(rows, desk);
        }
        let cells: Vec<Vec<u8>> = rows.iter().map(|row| self.short_cell(row, desk.terminal)).collect();
        if self.args.one || !desk.terminal {
            for cell in cells {
                desk.out.write_all(&cell)?;
                writeln!(desk.out)?;
            }
            return Ok(());
        }
        show_columns(&cells, desk.out)
    }

    fn amount(&self, bytes: u64, plain: u64) -> String {
        if self.args.human_readable { human_size(bytes) } else { plain.to_string() }
    }

    fn short_cell(&self, row: &Row, terminal: bool) -> Vec<u8> {
        let mut cell = if self.args.inode { format!("{} ", row.attr.ino.0).into_bytes() } else { Vec::new() };
        cell.extend(text(&row.name, terminal));
        cell
    }

    fn show_long(&self, rows: &[Row], desk: &mut Desk<'_>) -> anyhow::Result<()> {
        let cells: Vec<[String; 7]> = rows
            .iter()
            .map(|Row { attr, .. }| {
                let size = match attr.kind {
                    FileKind::BlockDevice | FileKind::CharDevice => {
                        format!("{}, {}", attr.rdev.0, attr.rdev.1)
                    }
                    _ => self.amount(attr.size, attr.size),
                };
                [
                    if self.args.inode { attr.ino.0.to_string() } else { String::new() },
                    mode_text(attr.kind, attr.perm),
                    attr.nlink.to_string(),
                    attr.uid.to_string(),
                    attr.gid.to_string(),
                    size,
                    short_time(attr.mtime),
                ]
            })
            .collect();
        let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: [usize; 7] = std::array::from_fn(width);
        for (row, cells) in rows.iter().zip(&cells) {
            for (cell, width) in cells.iter().zip(widths) {
                if width > 0 {
                    write!(desk.out, "{cell:>width$} ")?;
                }
            }
            desk.out.write_all(&text(&row.name, desk.terminal))?;
            if let Some(target) = &row.target {
                write!(desk.out, " -> ")?;
                desk.out.write_all(&text(target, desk.terminal))?;
            }
            writeln!(desk.out)?;
        }
        Ok(())
    }
}

/// A name as it is, or as a terminal may see it.
pub(crate) fn text(name: &[u8], terminal: bool) -> Vec<u8> {
    if terminal { shown(name).into_bytes() } else { name.to_vec() }
}

/// Columns filled downwards, as ls does on a terminal.
fn show_columns(cells: &[Vec<u8>], out: &mut dyn Write) -> anyhow::Result<()> {
    let screen =
        rustix::termios::tcgetwinsize(std::io::stdout()).map_or(WIDTH, |size| usize::from(size.ws_col));
    let lengths: Vec<usize> =
        cells.iter().map(|cell| String::from_utf8_lossy(cell).chars().count()).collect();
    let width_of = |rows: usize| -> usize {
        lengths
            .chunks(rows)
            .map(|column| column.iter().max().unwrap_or(&0) + 2)
            .sum::<usize>()
            .saturating_sub(2)
    };
    let rows = (1..=cells.len().max(1)).find(|&rows| width_of(rows) <= screen).unwrap_or(cells.len().max(1));
    let widths: Vec<usize> =
        lengths.chunks(rows).map(|column| column.iter().max().unwrap_or(&0) + 2).collect();
    for row in 0..rows.min(cells.len()) {
        for (column, width) in widths.iter().enumerate() {
            let Some(cell) = cells.get(column * rows + row) else { break };
            out.write_all(cell)?;
            if (column + 1) * rows + row < cells.len() {
                write!(out, "{:1$}", "", width - lengths[column * rows + row])?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::try_out::{Trial, tree};

    fn ls(args: &[&str]) -> (String, Vec<String>) {
        Trial::new(tree()).ran("ls", args)
    }

    #[test]
    fn names_one_a_line_where_nobody_looks() {
        assert_eq!(ls(&["v"]).0, "dir\nfile\nlink\n");
        assert_eq!(ls(&["-a", "v:/"]).0, ".\n..\n.hidden\ndir\nfile\nlink\n");
        assert_eq!(ls(&["-A", "v:/"]).0, ".hidden\ndir\nfile\nlink\n");
        assert_eq!(ls(&["-r", "v:/"]).0, "link\nfile\ndir\n");
        assert_eq!(ls(&["v:/file", "v:/dir"]).0, "v:/file\n\nv:/dir:\ninner\n");
        assert_eq!(ls(&["-d", "v:/dir"]).0, "v:/dir\n");
        assert_eq!(ls(&["-R", "v:/"]).0, "v:/:\ndir\nfile\nlink\n\nv:/dir:\ninner\n");
    }

    #[test]
    fn long_lines() {
        let (out, _) = ls(&["-l", "v:/"]);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].starts_with("total "), "{out}");
        assert!(lines[1].starts_with("drwxr-xr-x 2 0 0 "), "{out}");
        assert!(lines[2].starts_with("-rw-r----- 1 5 6 "), "{out}");
        assert!(lines[2].ends_with(" file") && lines[2].contains(" 5000 "), "{out}");
        assert!(lines[3].ends_with(" link -> dir/inner"), "{out}");
        assert!(ls(&["-lh", "v:/file"]).0.contains(" 4.9K "));
    }

    #[test]
    fn what_is_missing_is_said_and_the_rest_is_listed() {
        let (out, said) = ls(&["v:/nope", "v:/file"]);
        assert_eq!(out, "v:/file\n");
        assert_eq!(said, ["v:/nope: No such file or directory"]);
    }

    #[test]
    fn json_for_programs() {
        let (out, _) = ls(&["--json", "v:/"]);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        let entries = value[0]["entries"].as_array().unwrap();
        assert_eq!(entries[1]["name"], "file");
        assert_eq!(entries[1]["size"], 5000);
        assert_eq!(entries[1]["mode"], "0640");
        assert_eq!(entries[2]["target"], "dir/inner");
    }

    #[test]
    fn columns_fill_downwards() {
        let cells: Vec<Vec<u8>> = (0..30).map(|n| format!("name-{n:02}").into_bytes()).collect();
        let mut out = Vec::new();
        show_columns(&cells, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let first: Vec<&str> = out.lines().next().unwrap().split_whitespace().collect();
        assert!(first.len() > 1 && first[0] == "name-00" && first[1] != "name-01", "{out}");
        assert_eq!(out.split_whitespace().count(), 30);
    }
}
