//! Images on loop devices, mounted by the running kernel.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onggi_block_device::BlockDevice;
use onggi_ext4::{Atime, Ext4, MountError, MountOptions};
use onggi_file_device::{Backend, Direct, FileDevice, OpenOptions};

use crate::support::NOW;

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Says why a check was left out, past the test harness's capture, and how many were so far.
pub(crate) fn skip(why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why} (check {count} left out)");
}

/// Runs a tool and returns its exit code and what it said.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<(i32, String), String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned()))
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    match tool(program, arguments)? {
        (0, said) => Ok(said),
        (code, said) => Err(format!("{program} {arguments:?}: exit {code}: {said}")),
    }
}

/// An image file in a directory of its own.
pub(crate) struct Image {
    directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test")
}

impl Image {
    pub(crate) fn empty(size: u64) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("image");
        std::fs::File::create(&path).and_then(|file| file.set_len(size)).expect("an image file");
        Self { directory, path }
    }

    /// Made by mke2fs; `None` (said as a skip) where that is not here or does not know an option.
    pub(crate) fn mke2fs(size: u64, options: &str) -> Option<Self> {
        let image = Self::empty(size);
        let mut arguments = vec!["-q", "-F", "-t", "ext4"];
        arguments.extend(options.split_whitespace());
        arguments.push(text(&image.path));
        run("mke2fs", &arguments).map_err(|why| skip(&why)).ok()?;
        Some(image)
    }

    /// Holding these bytes, with holes for zeroes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        use std::os::unix::fs::FileExt as _;
        let image = Self::empty(bytes.len() as u64);
        let file = std::fs::File::options().write(true).open(&image.path).expect("the image");
        for (index, piece) in bytes.chunks(1 << 16).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                file.write_all_at(piece, (index << 16) as u64).expect("write");
            }
        }
        image
    }

    /// A copy with holes where the original has them.
    pub(crate) fn copy(&self) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("image");
        run("cp", &["--sparse=always", text(&self.path), text(&path)]).expect("cp");
        Self { directory, path }
    }

    /// Mounted by the kernel until dropped; `None` (said as a skip) where this machine cannot.
    pub(crate) fn mount_by_linux(&self, options: &str) -> Option<Mounted> {
        if let Some(why) = cannot_mount() {
            skip(&why);
            return None;
        }
        let at = tempfile::tempdir_in(self.directory.path()).expect("a mount point");
        let options = format!("loop,{options}");
        let arguments = ["-t", "ext4", "-o", &options, text(&self.path), text(at.path())];
        run("mount", &arguments).expect("Linux mounts it");
        Some(Mounted { at })
    }

    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        let options =
            OpenOptions { direct: Direct::Never, backend: Backend::Threads, ..OpenOptions::default() };
        Arc::new(FileDevice::open(&self.path, options).expect("the image as a device"))
    }

    pub(crate) fn mount_here(&self, change: impl FnOnce(&mut MountOptions)) -> Result<Arc<Ext4>, MountError> {
        crate::support::log();
        let mut options = MountOptions { background: false, atime: Atime::Noatime, ..Default::default() };
        change(&mut options);
        Ext4::mount(self.device(), options, NOW)
    }

    /// e2fsck replays and mends; the answer is what it says.
    pub(crate) fn e2fsck_mends(&self) -> String {
        let (code, said) = tool("e2fsck", &["-fy", text(&self.path)]).expect("e2fsck runs");
        assert!(code & !1 == 0, "e2fsck -fy: exit {code}: {said}");
        said
    }

    pub(crate) fn dumpe2fs(&self) -> String {
        run("dumpe2fs", &["-h", text(&self.path)]).expect("dumpe2fs")
    }

    pub(crate) fn needs_recovery(&self) -> bool {
        self.dumpe2fs().contains("needs_recovery")
    }

    /// What is in the journal, as debugfs tells it.
    pub(crate) fn logdump(&self) -> String {
        run("debugfs", &["-R", "logdump", text(&self.path)]).expect("debugfs")
    }
}

fn cannot_mount() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting needs root".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control".into());
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!known.contains("\text4\n")).then(|| "this kernel has no ext4".into())
}

/// A mount of the kernel; its loop device goes with it.
pub(crate) struct Mounted {
    at: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }

    /// Cuts the volume off as a power failure would, its log written first where asked.
    pub(crate) fn cut_off(&self, write_log: bool) -> Result<(), String> {
        let flag = if write_log { "1" } else { "2" };
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_LOGFLUSH or _NOLOGFLUSH.
        let script = r#"opendir(D, $ARGV[0]) or die "$!"; open(F, "<", $ARGV[0]) or die "$!";
            my $flag = pack("L", $ARGV[1]); ioctl(F, 0x8004587D, $flag) or die "$!";"#;
        run("perl", &["-e", script, text(self.path()), flag]).map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A child that another test is just starting may hold a descriptor for a moment.
        for _ in 0..200 {
            match run("umount", &[text(self.at.path())]) {
                Ok(_) => return,
                Err(why) if why.contains("busy") => std::thread::sleep(std::time::Duration::from_millis(50)),
                Err(why) => {
                    let _ = writeln!(std::io::stderr(), "{why}");
                    break;
                }
            }
        }
        let _ = writeln!(std::io::stderr(), "{}: detached", self.at.path().display());
        let _ = run("umount", &["-l", text(self.at.path())]);
    }
}
