//! Tickets: the requests that are here, in one flat table, each named by a place and how often it was used before.

use super::limits::Key;

/// Names a request from its admission to its end; then it names nothing, and none is ever used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    place: u32,
    used: u32,
}

impl Ticket {
    /// Its place in a table: below the most requests that may wait and run, and of no other request at the same time.
    pub fn place(self) -> usize {
        self.place as usize
    }
}

/// A request that is here.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub key: Key,
    pub priority: usize,
    pub deadline_us: u64,
    /// How many were admitted before it.
    pub order: u64,
    pub candidates: usize,
    /// How many of its candidates, from the first on, have been handed to lanes.
    pub given: usize,
    /// How many of its pieces are being executed.
    pub running: usize,
    /// It will have no answer, and its caller was told: late, shed, cancelled or failed.
    pub is_gone: bool,
}

impl Held {
    pub fn left(&self) -> usize {
        if self.is_gone { 0 } else { self.candidates - self.given }
    }
}

/// All requests that are here.
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

    /// A request that the scheduler itself still holds.
    pub fn at(&mut self, ticket: Ticket) -> &mut Held {
        let (used, held) = &mut self.places[ticket.place()];
        assert!(*used == ticket.used, "a ticket is kept while anything of it waits or runs");
        held.as_mut().expect("a ticket is kept while anything of it waits or runs")
    }

    /// Forget a request nothing of which waits or runs any more.
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

    /// How many are here, waiting or running.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
