//! SQLite keeps its promises on a mounted volume, when it is killed and when the power is cut.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::disk::Disk;

/// How a database is kept.
#[derive(Clone, Copy)]
struct Keeping {
    journal: &'static str,
    synchronous: &'static str,
}

/// A sqlite3 that inserts row after row, each in a transaction of its own, and after each asks which is the
/// last: a failed insert does not end it.
struct Inserter {
    sqlite: Child,
    feeder: JoinHandle<()>,
    /// Rows whose transactions were acknowledged.
    acknowledged: Receiver<u64>,
}

impl Inserter {
    fn start(disk: &Disk, keeping: Keeping, first: u64) -> Self {
        // Interactive, it does not keep its answers back.
        let mut command = disk.command("sqlite3", &["-batch", "-interactive", "-bail", "mnt/data.db"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut sqlite = command.spawn().expect("sqlite3");
        let mut input = sqlite.stdin.take().expect("a pipe");
        let output = BufReader::new(sqlite.stdout.take().expect("a pipe"));
        let Keeping { journal, synchronous } = keeping;
        let begin = format!(
            ".prompt '' ''\nPRAGMA journal_mode={journal};\nPRAGMA synchronous={synchronous};\n\
             CREATE TABLE IF NOT EXISTS rows(id INTEGER PRIMARY KEY, text TEXT);\n\
             CREATE INDEX IF NOT EXISTS by_text ON rows(text);\n"
        );
        let feeder = std::thread::spawn(move || {
            let mut text = begin;
            for row in first.. {
                text += &format!(
                    "INSERT INTO rows VALUES({row}, hex(randomblob({})));\nSELECT 'row', max(id) FROM rows;\n",
                    10 + row * 37 % 1500
                );
                // Until it dies.
                if input.write_all(text.as_bytes()).is_err() {
                    return;
                }
                text.clear();
            }
        });
        let (sender, acknowledged) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                let row = line.rsplit_once("row|").and_then(|(_, row)| row.trim().parse().ok());
                if row.is_some_and(|row| sender.send(row).is_err()) {
                    return;
                }
            }
        });
        Self { sqlite, feeder, acknowledged }
    }

    /// Waits until `count` transactions were acknowledged.
    fn wait(&self, count: usize) -> u64 {
        let start = Instant::now();
        let mut last = 0;
        for _ in 0..count {
            let left = Duration::from_secs(60).saturating_sub(start.elapsed());
            last = self.acknowledged.recv_timeout(left).expect("sqlite3 goes on inserting");
        }
        last
    }

    /// Kills sqlite3; gives the last row acknowledged.
    fn kill(mut self, last: u64) -> u64 {
        self.sqlite.kill().expect("it was not waited for");
        self.sqlite.wait().expect("it was killed");
        self.feeder.join().expect("no panic");
        self.acknowledged.iter().last().unwrap_or(last)
    }
}

/// The database is sound and has every row that was acknowledged; gives the first that is free.
fn judge(disk: &Disk, keeping: Keeping, last: u64, what: &str) -> u64 {
    let query = "PRAGMA integrity_check; SELECT count(*), coalesce(max(id), 0) FROM rows;";
    let answer = disk.ok("sqlite3", &["-batch", "mnt/data.db", query]);
    let Keeping { journal, synchronous } = keeping;
    let (integrity, rows) = answer.trim().split_once('\n').unwrap_or((&answer, ""));
    assert_eq!(integrity, "ok", "{what}, {journal}, {synchronous}");
    let (count, newest) = rows.split_once('|').expect("two numbers");
    let (count, newest): (u64, u64) = (count.parse().unwrap(), newest.parse().unwrap());
    assert_eq!(count, newest, "{what}, {journal}, {synchronous}: rows are missing in between");
    assert!(newest >= last, "{what}, {journal}, {synchronous}: {newest} rows of {last} acknowledged");
    newest + 1
}

const KILLED: [Keeping; 3] = [
    Keeping { journal: "WAL", synchronous: "FULL" },
    Keeping { journal: "DELETE", synchronous: "FULL" },
    Keeping { journal: "TRUNCATE", synchronous: "FULL" },
];

/// After a power cut, SQLite promises the last transaction of DELETE only with EXTRA, which also syncs
/// the directory that its journal was removed from.
const CUT: [Keeping; 3] = [
    Keeping { journal: "WAL", synchronous: "FULL" },
    Keeping { journal: "DELETE", synchronous: "EXTRA" },
    Keeping { journal: "TRUNCATE", synchronous: "FULL" },
];

#[test]
fn a_killed_sqlite_loses_nothing_acknowledged() {
    let Some(disk) = Disk::for_programs(&["sqlite3"]) else { return };
    for keeping in KILLED {
        disk.mount();
        let mut first = 1;
        for round in 0..4 {
            let inserter = Inserter::start(&disk, keeping, first);
            let last = inserter.wait(20 + 13 * round);
            let last = inserter.kill(last);
            first = judge(&disk, keeping, last, "sqlite3 killed");
        }
        disk.unmount();
        disk.mount();
        judge(&disk, keeping, first - 1, "unmounted and mounted");
        std::fs::remove_file(disk.path("mnt/data.db")).unwrap();
        disk.unmount();
    }
}

#[test]
fn sqlite_loses_nothing_acknowledged_in_a_power_cut() {
    let Some(disk) = Disk::for_programs(&["sqlite3"]) else { return };
    let first_seed = onggi_model::seed_or(1);
    for keeping in CUT {
        let mut first = 1;
        for seed in first_seed..first_seed + 4 {
            let server = disk.mount_with_power_cut(seed);
            if first > 1 {
                first = judge(&disk, keeping, first - 1, &format!("power cut again, seed {seed}"));
            }
            let inserter = Inserter::start(&disk, keeping, first);
            let last = inserter.wait(10 + (seed as usize * 17) % 40);
            disk.cut_power(server);
            let last = inserter.kill(last);
            disk.mount();
            first = judge(&disk, keeping, last, &format!("power cut, seed {seed}"));
            disk.unmount();
        }
        disk.mount();
        std::fs::remove_file(disk.path("mnt/data.db")).unwrap();
        disk.unmount();
    }
}
