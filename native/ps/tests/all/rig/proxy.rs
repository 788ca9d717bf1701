//! A network that drops, truncates, repeats and delays frames.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use streamlearn_ps::HEADER_BYTES;

use super::{Chance, Cluster};

/// A proxy of one shard whose seeded failures imitate a bad network.
pub struct Proxy {
    pub address: String,
    is_over: Arc<AtomicBool>,
    /// How many of 1,000 frames are disturbed.
    disturbed_per_1000: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    /// A proxy of each shard.
    pub fn of_all(cluster: &Cluster, seed: u64) -> Vec<Self> {
        let addresses = cluster.addresses().into_iter().enumerate();
        addresses.map(|(at, to)| Self::start(to, seed | (at as u64) << 40)).collect()
    }

    /// Disturbs no further frame.
    pub fn calm(&self) {
        self.disturbed_per_1000.store(0, Ordering::SeqCst);
    }

    fn start(to: String, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_over, disturbed_per_1000) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(150)));
        let (is_stopped, frames_disturbed) = (is_over.clone(), disturbed_per_1000.clone());
        let thread = std::thread::spawn(move || {
            let mut pumps = Vec::new();
            for (at, from) in listener.incoming().enumerate() {
                if is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(&to)) else { continue };
                for (direction, (from, to)) in [(&from, &to), (&to, &from)].into_iter().enumerate() {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let chance = Chance(seed ^ (2 * at + direction) as u64);
                    let frames_disturbed = frames_disturbed.clone();
                    pumps.push(std::thread::spawn(move || {
                        let _ = pump(&from, &to, chance, &frames_disturbed);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    }));
                }
            }
            pumps.into_iter().for_each(|pump| pump.join().unwrap());
        });
        Self { address, is_over, disturbed_per_1000, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Forwards frames in one direction, until the connection fails or is dropped on purpose.
fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut chance: Chance,
    disturbed_per_1000: &AtomicU64,
) -> std::io::Result<()> {
    loop {
        let mut frame = vec![0; HEADER_BYTES];
        from.read_exact(&mut frame)?;
        let payload_bytes = u32::from_le_bytes(frame[4..8].try_into().unwrap()) as usize;
        frame.resize(HEADER_BYTES + payload_bytes + 4, 0);
        from.read_exact(&mut frame[HEADER_BYTES..])?;
        if chance.below(1000) >= disturbed_per_1000.load(Ordering::SeqCst) {
            to.write_all(&frame)?;
            continue;
        }
        match chance.below(5) {
            0 => return Ok(()),
            1 => {
                let end = chance.below(frame.len() as u64) as usize;
                return to.write_all(&frame[..end]);
            }
            2 => {
                to.write_all(&frame)?;
                return Ok(());
            }
            3 => {
                to.write_all(&frame)?;
                to.write_all(&frame)?;
            }
            _ => {
                std::thread::sleep(Duration::from_micros(chance.below(2_000)));
                to.write_all(&frame)?;
            }
        }
    }
}
