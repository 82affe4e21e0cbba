//! What the server takes on: a request is admitted or refused as a whole, before work is done for it.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::schema::{Fault, FaultKind};

/// Memory of a request in its body's bytes: the body, the texts that are parsed from it, and their tokens.
const BYTES_PER_BODY_BYTE: u64 = 6;

/// What is admitted now, and the limits.
pub(super) struct Admission {
    max_requests: usize,
    /// Maximum bytes of requests and answers in flight.
    max_bytes: AtomicU64,
    requests: AtomicUsize,
    bytes: AtomicU64,
}

/// A request that was admitted. What it takes is free when this is dropped, after the answer is sent.
pub(super) struct Admitted {
    admission: Arc<Admission>,
    /// Whether it is one of the requests that are limited.
    is_counted: bool,
    bytes: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.requests.fetch_sub(usize::from(self.is_counted), Ordering::AcqRel);
        self.admission.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Admission {
    /// Admits `max_requests` at once, of any size until [`Admission::limit_bytes`].
    pub(super) fn new(max_requests: usize) -> Arc<Self> {
        let (requests, bytes) = Default::default();
        Arc::new(Admission { max_requests, max_bytes: AtomicU64::new(u64::MAX), requests, bytes })
    }

    /// Limits the bytes of requests and answers in flight.
    pub(super) fn limit_bytes(&self, bytes: u64) {
        self.max_bytes.store(bytes, Ordering::Release);
    }

    /// Requests that are admitted now.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Admits a request with a body of so many bytes.
    pub(super) fn admit(self: &Arc<Self>, body_bytes: u64) -> Result<Admitted, Fault> {
        if self.requests.fetch_add(1, Ordering::AcqRel) >= self.max_requests {
            self.requests.fetch_sub(1, Ordering::AcqRel);
            let message = format!("{} requests wait or run; send fewer at once", self.max_requests);
            return Err(Fault::new(FaultKind::Overloaded, message));
        }
        let mut admitted = Admitted { admission: self.clone(), is_counted: true, bytes: 0 };
        admitted.grow(body_bytes * BYTES_PER_BODY_BYTE)?;
        Ok(admitted)
    }

    /// Admits a request that needs no worker, whatever waits, with a body of so many bytes.
    pub(super) fn admit_beside(self: &Arc<Self>, body_bytes: u64) -> Result<Admitted, Fault> {
        let mut admitted = Admitted { admission: self.clone(), is_counted: false, bytes: 0 };
        admitted.read(body_bytes)?;
        Ok(admitted)
    }
}

impl Admitted {
    /// The request has its answer. Its bytes are those of the body from now on, until they are sent.
    pub(super) fn answered(mut self, body_bytes: u64) -> Self {
        let is_counted = mem::take(&mut self.is_counted);
        self.admission.requests.fetch_sub(usize::from(is_counted), Ordering::AcqRel);
        self.admission.bytes.fetch_add(body_bytes, Ordering::AcqRel);
        self.admission.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.bytes = body_bytes;
        self
    }

    /// Counts more bytes of the request's body.
    pub(super) fn read(&mut self, body_bytes: u64) -> Result<(), Fault> {
        self.grow(body_bytes * BYTES_PER_BODY_BYTE)
    }

    /// Counts more bytes of this request: those of the rows of its answer.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), Fault> {
        let max = self.admission.max_bytes.load(Ordering::Acquire);
        if self.bytes + bytes > max {
            let message = format!(
                "the request and its answer take {} MB, of which the server has {}; send fewer texts at once",
                (self.bytes + bytes) >> 20,
                max >> 20
            );
            return Err(Fault::new(FaultKind::BodyTooLarge, message));
        }
        if self.admission.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > max {
            self.admission.bytes.fetch_sub(bytes, Ordering::AcqRel);
            let message = "the memory for requests is in use; send the request again later";
            return Err(Fault::new(FaultKind::Overloaded, message));
        }
        self.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_while_they_are_admitted() {
        let admission = Admission::new(2);
        let admitted = [admission.admit(10), admission.admit(10)];
        let refused = admission.admit(1).err().map(|fault| fault.kind);
        assert_eq!(refused, Some(FaultKind::Overloaded));
        assert_eq!((admission.requests(), admission.bytes()), (2, 120));
        let beside = admission.admit_beside(10).unwrap();
        assert_eq!(admission.bytes(), 180, "its body is counted");
        drop(beside);
        assert_eq!((admission.requests(), admission.bytes()), (2, 120));
        drop(admitted);
        assert_eq!((admission.requests(), admission.bytes()), (0, 0));
    }

    #[test]
    fn memory_is_refused_before_it_is_used() {
        let admission = Admission::new(9);
        admission.limit_bytes(1000);
        let kind = |admitted: Result<Admitted, Fault>| admitted.err().map(|fault| fault.kind);
        assert_eq!(kind(admission.admit(200)), Some(FaultKind::BodyTooLarge), "it never fits");
        let mut first = admission.admit(100).unwrap();
        assert_eq!(kind(admission.admit(100)), Some(FaultKind::Overloaded), "it fits later");
        assert_eq!(first.grow(300).err(), None);
        assert_eq!(first.grow(300).err().map(|fault| fault.kind), Some(FaultKind::BodyTooLarge));
        drop(first);
        assert_eq!(kind(admission.admit(100)), None);
    }
}
