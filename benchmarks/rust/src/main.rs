//! The reference implementation as a subprocess: one tab-separated request a
//! line on stdin, one reply a line on stdout, timed in here so that neither the
//! start of the process nor the pipe counts.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::Mmap;
use safetensors::tensor::{serialize_to_file, Metadata, SafeTensors, TensorView};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What stays between requests.
#[derive(Default)]
struct State {
    maps: HashMap<String, Mmap>,
    files: HashMap<String, Vec<u8>>,
}

impl State {
    /// The file as a memory map, kept so that its header is in memory and
    /// mapped when the clock starts.
    fn map(&mut self, path: &str) -> Result<&Mmap> {
        if !self.maps.contains_key(path) {
            self.maps.clear();
            self.maps.insert(path.to_string(), map(path)?);
        }
        Ok(&self.maps[path])
    }

    /// The whole file in memory of our own.
    fn file(&mut self, path: &str) -> Result<&Vec<u8>> {
        if !self.files.contains_key(path) {
            self.files.clear();
            self.files.insert(path.to_string(), std::fs::read(path)?);
        }
        Ok(&self.files[path])
    }
}

fn map(path: &str) -> Result<Mmap> {
    // SAFETY: the benchmark does not change a file while it is read.
    Ok(unsafe { Mmap::map(&File::open(path)?)? })
}

/// Header only. The result is dropped after the clock has stopped.
fn header(state: &mut State, path: &str, n: usize) -> Result<Duration> {
    let buffer = state.map(path)?;
    let mut total = Duration::ZERO;
    for _ in 0..n {
        let start = Instant::now();
        let parsed: (usize, Metadata) = SafeTensors::read_metadata(black_box(buffer))?;
        total += start.elapsed();
        black_box(&parsed);
    }
    Ok(total)
}

/// Map, check the header, find one tensor, read its first byte, unmap.
fn open(path: &str, name: &str, n: usize) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..n {
        let buffer = map(path)?;
        let tensors = SafeTensors::deserialize(&buffer)?;
        black_box(tensors.tensor(name)?.data()[0]);
    }
    Ok(start.elapsed())
}

/// One tensor of a file that is open.
fn tensor(state: &mut State, path: &str, name: &str, n: usize) -> Result<Duration> {
    let tensors = SafeTensors::deserialize(state.map(path)?)?;
    let start = Instant::now();
    for _ in 0..n {
        black_box(tensors.tensor(black_box(name))?.data());
    }
    Ok(start.elapsed())
}

/// The whole file into memory, header checked.
fn load(path: &str) -> Result<Duration> {
    let start = Instant::now();
    let buffer = std::fs::read(path)?;
    let tensors = SafeTensors::deserialize(&buffer)?;
    black_box(tensors.len());
    Ok(start.elapsed())
}

/// Write tensors that are in memory; serialize_to_file does not sync by itself.
fn save(state: &mut State, from: &str, to: &str, sync: bool) -> Result<Duration> {
    let tensors = SafeTensors::deserialize(state.file(from)?)?.tensors();
    let start = Instant::now();
    write(tensors, to, sync)?;
    Ok(start.elapsed())
}

/// Write the tensors of a mapped file to another file.
fn copy(from: &str, to: &str, sync: bool) -> Result<Duration> {
    let start = Instant::now();
    let buffer = map(from)?;
    write(SafeTensors::deserialize(&buffer)?.tensors(), to, sync)?;
    Ok(start.elapsed())
}

fn write(tensors: Vec<(String, TensorView)>, to: &str, sync: bool) -> Result<()> {
    let path = Path::new(to);
    serialize_to_file(tensors, None, path)?;
    if sync {
        File::open(path)?.sync_all()?;
        File::open(path.parent().ok_or("no parent")?)?.sync_all()?;
    }
    Ok(())
}

fn answer(state: &mut State, line: &str) -> Result<Duration> {
    let fields: Vec<&str> = line.split('\t').collect();
    match fields[..] {
        ["header", path, n] => header(state, path, n.parse()?),
        ["open", path, name, n] => open(path, name, n.parse()?),
        ["tensor", path, name, n] => tensor(state, path, name, n.parse()?),
        ["load", path] => load(path),
        ["save", from, to, sync] => save(state, from, to, sync == "sync"),
        ["copy", from, to, sync] => copy(from, to, sync == "sync"),
        _ => Err(format!("unknown request {line:?}").into()),
    }
}

fn main() -> Result<()> {
    let mut state = State::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match answer(&mut state, &line?) {
            Ok(time) => writeln!(out, "ok\t{}\t{}", time.as_nanos(), peak())?,
            Err(err) => writeln!(out, "error\t{}", err.to_string().replace(['\n', '\t'], " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

/// The most memory that this process has had resident, in bytes; 0 if unknown.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
