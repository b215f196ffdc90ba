//! `onggi get` and `onggi put`: one file out, one file in.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use onggi_vfs::{Errno, FileKind, FileSystem, Node, SetAttr};

use crate::args::{Get, Put};
use crate::commands::Desk;
use crate::commands::cat::pour;
use crate::copy::{Copier, Host, How, Side, Volume, Writer};
use crate::images::context;
use crate::place::{ImagePath, last_name};
use crate::progress::Progress;
use crate::report::{At, about};
use crate::walk::{find, find_parent};

/// Bytes moved at once.
const CHUNK: usize = 1 << 20;

/// Takes one file out.
pub(crate) fn get(args: &Get, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let place = ImagePath::parse_full(&args.place)?;
    let fs = desk.images.of(&place, false)?;
    let attr = find(&*fs, &place.path, true).at(&place)?;
    match attr.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(about(Errno::ISDIR, &place)),
        _ => bail!("{place}: not a regular file"),
    }
    let target = args.file.clone().unwrap_or_else(|| PathBuf::from("."));
    if target == Path::new("-") {
        return pour(&*fs, &place, attr.ino, desk.out);
    }
    let mut target = target;
    if target.is_dir() {
        let name = place.file_name().expect("a regular file has a name");
        target.push(std::ffi::OsStr::from_bytes(name));
    }
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let Some(name) = last_name(target.as_os_str().as_bytes()) else {
        bail!("{}: not a file", target.display());
    };
    let (side, progress) = (Volume::new(&*fs), Progress::new(true));
    let to_text = target.as_os_str().as_bytes().to_vec();
    Copier::new(&side, &Host, How::default(), &progress, desk.complaints, desk.out).copy(
        &attr.ino,
        &parent,
        name,
        place.to_bytes(),
        to_text,
    )
}

/// Puts one file in.
pub(crate) fn put(args: &Put, desk: &mut Desk<'_>) -> anyhow::Result<()> {
    let mut place = ImagePath::parse_full(&args.place)?;
    let fs = desk.images.of(&place, true)?;
    let from_stdin = args.file == Path::new("-");
    let (mut input, perm): (Box<dyn Read>, u16) = if from_stdin {
        (Box::new(std::io::stdin().lock()), 0o666)
    } else {
        let file = File::open(&args.file).at(args.file.display())?;
        let meta = file.metadata().at(args.file.display())?;
        if meta.is_dir() {
            return Err(std::io::Error::from(ErrorKind::IsADirectory)).at(args.file.display());
        }
        (Box::new(file), (meta.permissions().mode() & 0o777) as u16)
    };
    if find(&*fs, &place.path, true).is_ok_and(|attr| attr.kind == FileKind::Directory) {
        let name = last_name(args.file.as_os_str().as_bytes()).filter(|_| !from_stdin);
        let Some(name) = name else {
            return Err(about(Errno::ISDIR, &place));
        };
        place = place.join(name);
    }
    put_from(&mut *input, &*fs, &place, perm, args.mode).map_err(|error| match error {
        Failure::Reading(error) => Err::<(), _>(error).at(args.file.display()).unwrap_err(),
        Failure::Writing(error) => Err::<(), _>(error).at(&place).unwrap_err(),
    })
}

enum Failure {
    Reading(std::io::Error),
    Writing(onggi_vfs::Error),
}

impl From<onggi_vfs::Error> for Failure {
    fn from(error: onggi_vfs::Error) -> Self {
        Self::Writing(error)
    }
}

fn put_from(
    input: &mut dyn Read,
    fs: &dyn FileSystem,
    place: &ImagePath,
    perm: u16,
    mode: Option<u16>,
) -> Result<(), Failure> {
    let side = Volume::new(fs);
    let ino = match find(fs, &place.path, true) {
        Ok(attr) => attr.ino,
        Err(error) if error.errno() == Errno::NOENT => {
            let (dir, name) = find_parent(fs, &place.path)?;
            fs.create(&context(), dir, &name, Node::Regular, side.mask(perm))?.ino
        }
        Err(error) => return Err(error.into()),
    };
    let mut writer = side.writer(&ino)?;
    writer.set_len(0)?;
    pump(input, &mut *writer)?;
    if let Some(mode) = mode {
        fs.setattr(&context(), ino, &SetAttr { perm: Some(mode), ..SetAttr::default() })?;
    }
    Ok(())
}

fn pump(input: &mut dyn Read, writer: &mut dyn Writer) -> Result<(), Failure> {
    let progress = Progress::new(true);
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        // Whole chunks, however small the pieces that a pipe hands over.
        let mut len = 0;
        while len < CHUNK {
            match input.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::Reading(error)),
            }
        }
        if len == 0 {
            return Ok(());
        }
        writer.write_at(offset, &buffer[..len])?;
        progress.bytes(len as u64);
        offset += len as u64;
    }
}
