//! Tickets: a flat table of the current requests; a ticket holds an index and the entry's reuse count.

use super::limits::Key;

/// Identifies a request from its admission to its end; tickets are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    place: u32,
    used: u32,
}

impl Ticket {
    /// Returns its index in the table: below the maximum number of waiting and running requests, and unique
    /// among them.
    pub fn place(self) -> usize {
        self.place as usize
    }
}

/// A request in the table.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub key: Key,
    pub priority: usize,
    pub deadline_us: u64,
    /// The number of requests admitted before it.
    pub order: u64,
    pub candidates: usize,
    /// How many candidates, from the first on, were handed to lanes.
    pub given: usize,
    /// How many pieces are being executed.
    pub running: usize,
    /// Whether it has ended without an answer, as its caller was told: late, shed, cancelled or failed.
    pub is_gone: bool,
}

impl Held {
    pub fn left(&self) -> usize {
        if self.is_gone { 0 } else { self.candidates - self.given }
    }
}

/// All current requests.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    places: Vec<(u32, Option<Held>)>,
    free: Vec<u32>,
}

impl Tickets {
    pub fn put(&mut self, held: Held) -> Ticket {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (used, here) = &mut self.places[place as usize];
        *here = Some(held);
        Ticket { place, used: *used }
    }

    pub fn find(&self, ticket: Ticket) -> Option<&Held> {
        let (used, held) = self.places.get(ticket.place())?;
        if *used == ticket.used { held.as_ref() } else { None }
    }

    /// Returns a request that the scheduler still holds.
    pub fn at(&mut self, ticket: Ticket) -> &mut Held {
        let (used, held) = &mut self.places[ticket.place()];
        assert!(*used == ticket.used, "a ticket is valid while a part of its request waits or runs");
        held.as_mut().expect("a ticket is valid while a part of its request waits or runs")
    }

    /// Removes a request of which nothing waits or runs.
    pub fn drop_ended(&mut self, ticket: Ticket) {
        let held = self.at(ticket);
        if held.running > 0 || held.left() > 0 {
            return;
        }
        let (used, held) = &mut self.places[ticket.place()];
        *held = None;
        *used = used.wrapping_add(1);
        self.free.push(ticket.place);
    }

    /// Returns the number of waiting and running requests.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
