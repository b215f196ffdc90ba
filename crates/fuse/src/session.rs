//! The conversation with the kernel: INIT, then requests until it is over.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Scope;

use onggi_vfs::{Errno, Error};
use zerocopy::IntoBytes;

use crate::MountError;
use crate::answer::Answer;
use crate::request::Request;
use crate::server::{MAX_REQUEST, Outcome, Server};
use crate::wire::{
    InitIn, InitOut, MAJOR, MINOR, NOTIFY_INVAL_INODE, NotifyInvalInode, OLDEST_MINOR, Opcode, OutHeader,
    init,
};

/// Room for a request's headers beside its data.
const HEADERS: usize = 4096;
/// Requests of the kernel's own (read-ahead, writeback) that may be under way, and where it slows down.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION: u16 = 48;
/// What is asked of the kernel where it can. Set-id bits are dropped here (KILLPRIV), or each write
/// would first ask for `security.capability`.
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::WRITEBACK_CACHE
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT;

/// One connection and who serves it.
pub(crate) struct Session {
    pub(crate) connection: OwnedFd,
    pub(crate) server: Server,
}

/// A worker's buffers.
struct Buffers {
    request: Box<[u8]>,
    answer: Answer,
}

impl Buffers {
    fn new() -> Self {
        Self {
            request: vec![0; MAX_REQUEST + HEADERS].into_boxed_slice(),
            answer: Answer::with_room(MAX_REQUEST),
        }
    }
}

impl Session {
    /// Answers the kernel's INIT.
    pub(crate) fn handshake(&self) -> std::result::Result<(), MountError> {
        let mut buffers = Buffers::new();
        loop {
            let bytes = match self.receive(&mut buffers.request).map_err(MountError::Handshake)? {
                Some(len) => &buffers.request[..len],
                None => return Err(MountError::Handshake(std::io::ErrorKind::ConnectionAborted.into())),
            };
            let odd = || MountError::Handshake(std::io::ErrorKind::InvalidData.into());
            let mut request = Request::parse(bytes).ok_or_else(odd)?;
            if Opcode::from_wire(request.header.opcode) != Some(Opcode::Init) {
                return Err(odd());
            }
            let input: InitIn = request.take().map_err(|_| odd())?;
            if input.major < MAJOR || (input.major == MAJOR && input.minor < OLDEST_MINOR) {
                return Err(MountError::OldKernel { major: input.major, minor: input.minor });
            }
            let output = init_out(&input);
            let answer = &mut buffers.answer;
            answer.clear();
            answer.put(&output).map_err(|_| odd())?;
            self.send(answer.message(request.header.unique, None))
                .map_err(|e| MountError::Handshake(e.into()))?;
            // A newer major version: the kernel has learnt ours and asks again.
            if input.major == MAJOR {
                return Ok(());
            }
        }
    }

    /// Serves until the kernel has finished.
    pub(crate) fn run(&self, threads: usize) -> std::io::Result<()> {
        let result = std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for number in 1..threads {
                let name = format!("fuse-{number}");
                workers
                    .push(std::thread::Builder::new().name(name).spawn_scoped(scope, || self.work(scope))?);
            }
            let mut result = self.work(scope);
            for worker in workers {
                let theirs =
                    worker.join().unwrap_or_else(|_| Err(std::io::Error::other("a worker panicked")));
                result = result.and(theirs);
            }
            result
        });
        self.server.finish();
        result
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> std::io::Result<()> {
        let mut buffers = Buffers::new();
        loop {
            let Some(len) = self.receive(&mut buffers.request)? else { return Ok(()) };
            let bytes = &buffers.request[..len];
            let Some(request) = Request::parse(bytes) else {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidData,
                    "a request's lengths disagree",
                ));
            };
            if self.server.needs_write_back(&request) {
                let (bytes, id) = (bytes.to_vec(), request.header.nodeid);
                let seek = move || self.write_back_and_answer(id, &bytes);
                std::thread::Builder::new().name("fuse-seek".into()).spawn_scoped(scope, seek)?;
            } else if self.answer(request, &mut buffers.answer) {
                return Ok(());
            }
        }
    }

    /// Has the kernel write home what it caches of a node, then answers the request. Not for a worker:
    /// the kernel's writes must find one.
    fn write_back_and_answer(&self, id: u64, bytes: &[u8]) {
        let notice = NotifyInvalInode { ino: id, off: 0, len: 0 };
        let len = u32::try_from(size_of::<OutHeader>() + size_of_val(&notice)).expect("40");
        let header = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
        if let Err(errno) = self.send(&[header.as_bytes(), notice.as_bytes()].concat()) {
            tracing::debug!(%errno, "the kernel did not write a node back");
        }
        if let Some(request) = Request::parse(bytes) {
            self.answer(request, &mut Answer::with_room(size_of::<u64>()));
        }
    }

    /// Serves and answers one request; says whether it was the last.
    fn answer(&self, mut request: Request<'_>, answer: &mut Answer) -> bool {
        let (unique, opcode) = (request.header.unique, request.header.opcode);
        answer.clear();
        let served = catch_unwind(AssertUnwindSafe(|| self.server.serve(&mut request, answer)));
        match served.unwrap_or_else(|panic| Err(panicked(opcode, &*panic))) {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Finished) => {
                let _ = self.send(answer.message(unique, None));
                return true;
            }
            Ok(outcome) => {
                if let Err(errno) = self.send(answer.message(unique, None)) {
                    tracing::debug!(opcode, %errno, "the kernel did not take an answer");
                    self.server.undo(outcome);
                }
            }
            Err(error) => {
                log(opcode, &error);
                // It fails only where nobody waits for it any more.
                let _ = self.send(answer.message(unique, Some(error.errno())));
            }
        }
        false
    }

    /// The next request's length; `None` where the connection is over.
    fn receive(&self, buffer: &mut [u8]) -> std::io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.connection, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was taken back while being read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends one message; the kernel takes it whole or not at all.
    fn send(&self, message: &[u8]) -> std::result::Result<(), Errno> {
        loop {
            match rustix::io::write(&self.connection, message) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// The answer to INIT.
fn init_out(input: &InitIn) -> InitOut {
    let mut offered = u64::from(input.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(input.flags2) << 32;
    }
    let flags = WANTED & offered;
    let max_request = u32::try_from(MAX_REQUEST).expect("1 MiB");
    let pages = max_request / u32::try_from(rustix::param::page_size()).expect("a page is small");
    InitOut {
        major: MAJOR,
        minor: MINOR.min(input.minor),
        max_readahead: input.max_readahead.max(max_request),
        flags: (flags & u64::from(u32::MAX)) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION,
        max_write: max_request,
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    }
}

fn panicked(opcode: u32, panic: &(dyn Any + Send)) -> Error {
    let said =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(opcode, said, "a request panicked; it is answered with an I/O error");
    Errno::IO.into()
}

/// Tells the log what the kernel has no words for: a reason beyond the error number.
fn log(opcode: u32, error: &Error) {
    match (error.errno(), error.detail()) {
        (Errno::IO | Errno::UCLEAN, detail) => {
            tracing::error!(opcode, errno = %error.errno(), detail = detail.map(tracing::field::display));
        }
        (errno, Some(detail)) => tracing::debug!(opcode, %errno, %detail),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let input = InitIn {
            major: 7,
            minor: 31,
            max_readahead: 131_072,
            flags: 1 | 1 << 16 | 1 << 17,
            ..InitIn::default()
        };
        let output = init_out(&input);
        assert_eq!(output.flags, 1 | 1 << 16);
        assert_eq!((output.major, output.minor), (7, 31));
        assert_eq!(output.max_write, 1 << 20);
    }
}
