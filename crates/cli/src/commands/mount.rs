//! `onggi mount`: a serving process of its own, which tells when the mount can be used.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use onggi_fuse::Unmounter;
use onggi_vfs::FileSystem;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::Mount;
use crate::commands::mkfs::default_volume;
use crate::engine;
use crate::mount_options::Options;
use crate::place::shown;
use crate::report::{At, sentence};

/// mount(8): wrong usage.
pub(crate) const USAGE: u8 = 1;
/// mount(8): the mount failed.
pub(crate) const FAILED: u8 = 32;
/// What the serving process says when the mount can be used.
const READY: &str = "ready\n";

/// Mounts; gives the exit code.
pub(crate) fn run(args: &Mount) -> u8 {
    let options = match Options::parse(args.options.iter().map(String::as_str)) {
        Ok(mut options) => {
            if args.read_only {
                options.set_read_only(true);
            }
            options
        }
        Err(error) => {
            say(&error);
            return USAGE;
        }
    };
    let done = if args.foreground || args.serve { serve(args, options) } else { start_server(args) };
    match done {
        Ok(code) => code,
        Err(error) => {
            say(&error);
            FAILED
        }
    }
}

fn say(error: &anyhow::Error) {
    eprintln!("onggi: mount: {}", sentence(error));
}

/// Starts this program again as the serving process, and waits until it is ready.
fn start_server(args: &Mount) -> anyhow::Result<u8> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["mount", "--serve"]);
    if args.read_only {
        command.arg("-r");
    }
    if !args.options.is_empty() {
        command.arg("-o").arg(args.options.join(","));
    }
    command.arg("--").arg(&args.image).arg(&args.dir);
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().at("starting the server")?;
    let mut said = String::new();
    let output = server.stdout.take().expect("it was asked for");
    BufReader::new(output.take(64)).read_line(&mut said).at("waiting for the server")?;
    if said == READY {
        return Ok(0);
    }
    // It has said why.
    let status = server.wait().at("waiting for the server")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

/// Mounts and serves until the end.
fn serve(args: &Mount, mut options: Options) -> anyhow::Result<u8> {
    if args.serve {
        // Of no terminal and no job: what ends those must not end this.
        let _ = rustix::process::setsid();
    }
    // Before the mount, so that none is missed.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).at("signals")?;
    let log = match &options.log {
        Some(path) => OpenOptions::new().append(true).create(true).open(path).at(path.display())?,
        None => OpenOptions::new().read(true).write(true).open("/dev/null").at("/dev/null")?,
    };
    let image = shown(args.image.as_encoded_bytes());
    let mut device = engine::open_device(&args.image, options.engine.read_only)?;
    if engine::memory_size(&args.image)?.is_some() {
        default_volume(&*device, &args.image)?;
    }
    if let Some(seed) = options.power_cut {
        device = engine::with_power_cut(device, seed);
    }
    if device.attributes().read_only {
        options.set_read_only(true);
    }
    options.fuse.fsname = match std::fs::canonicalize(&args.image) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => image.clone(),
    };
    let fs = engine::open_volume(device, options.engine).map_err(|error| error.context(image.clone()))?;
    let mount = onggi_fuse::Mount::new(Arc::clone(&fs), &options.fuse, &args.dir);
    let served = mount.map_err(anyhow::Error::from).and_then(|mount| {
        obey(signals, mount.unmounter(), Arc::clone(&fs));
        if args.serve {
            leave_the_starter(&log)?;
        }
        Ok(mount.run()?)
    });
    let closed = fs.unmount().at(&image);
    served.and(closed).map(|()| 0)
}

/// Tells the starter that the mount can be used, and lets go of its terminal.
fn leave_the_starter(log: &File) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(READY.as_bytes()).and_then(|()| out.flush()).at("the starter is gone")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").at("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(log)?;
    // Keep no directory busy.
    std::env::set_current_dir(Path::new("/")).at("/")
}

/// Unmounts at the first signal; at a second ends without waiting for open files.
fn obey(mut signals: Signals, unmounter: Unmounter, fs: Arc<dyn FileSystem>) {
    std::thread::spawn(move || {
        let mut first = true;
        for _ in signals.forever() {
            if first {
                if let Err(error) = unmounter.unmount() {
                    tracing::error!(%error, "unmounting");
                }
            } else {
                let result = fs.unmount();
                if let Err(error) = &result {
                    tracing::error!(%error, "unmounting");
                }
                std::process::exit(if result.is_ok() { 0 } else { i32::from(FAILED) });
            }
            first = false;
        }
    });
}
