//! Volumes that a power cut left behind: a mounted volume's bytes, copied.

use std::process::Command;

use onggi_ext4_check::Mode;

use crate::images::Image;

/// Leaves deleted but open files behind, and a log that is not empty.
const WORK: &str = r#"
set -e
cd "$1"
mkdir d; i=0; while [ $i -lt 300 ]; do echo $i > d/f$i; i=$((i+1)); done
sync -f .
python3 - "$1" "$2" <<'P'
import os, sys
os.chdir(sys.argv[1])
held = []
for i in range(20):
    f = open(f"gone{i}", "wb"); f.write(b"g" * (i * 5000)); f.flush(); held.append(f)
    os.setxattr(f"gone{i}", "user.x", b"X" * 300)
os.fsync(os.open('.', os.O_RDONLY))
for i in range(20): os.unlink(f"gone{i}")
for i in range(0, 300, 2): os.unlink(f"d/f{i}")
os.rename("d/f1", "moved")
fd = os.open(".", os.O_RDONLY); os.fsync(fd)
import subprocess
subprocess.check_call(["cp", "--sparse=always", sys.argv[2], sys.argv[2] + ".cut"])
P
"#;

#[test]
fn volumes_after_a_power_cut() {
    let recipes: [&[&str]; 4] = [
        &["-b", "4096"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "1024", "-O", "orphan_file"],
        &["-b", "1024", "-O", "^extent,^64bit"],
    ];
    for recipe in recipes {
        let Some(image) = Image::make("32M", recipe) else { return };
        if !image.mounted(WORK) {
            continue;
        }
        let cut = image.sibling("cut");
        let dirty = cut.bytes();
        // Reading only, the device stays as it is; the log is replayed in memory.
        let report = cut.check(Mode::ReadOnly).unwrap();
        assert!(report.is_clean(), "{recipe:?}: {:#?}", report.problems);
        let replay = report.replay.expect("the log is not empty");
        assert!(replay.in_memory && replay.transactions > 0 && replay.blocks > 0, "{replay:?}");
        assert!(report.stats.orphans >= 20, "{recipe:?}: {:?}", report.stats);
        assert!(!report.modified);
        for mode in [Mode::Preen, Mode::Yes] {
            cut.restore(&dirty);
            let report = cut.check(mode).unwrap();
            assert_eq!(report.exit_code(), 0, "{recipe:?}: {:#?}", report.problems);
            assert!(report.modified && report.replay.is_some_and(|replay| !replay.in_memory));
            assert_eq!(report.stats.orphans, 0);
            cut.assert_clean(recipe);
            let after = cut.check(Mode::ReadOnly).unwrap();
            assert!(after.replay.is_none());
            // The kernel's own recovery ends with the same files.
            let ours = cut.debugfs("ls -p /\nls -p /d");
            cut.restore(&dirty);
            let theirs = Command::new("e2fsck").args(["-f", "-y"]).arg(cut.path()).output().unwrap();
            assert!(theirs.status.code().unwrap() <= 1);
            assert_eq!(ours, cut.debugfs("ls -p /\nls -p /d"));
        }
    }
}
