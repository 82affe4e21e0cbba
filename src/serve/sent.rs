//! What is sent: the body of an answer, which takes memory until its client has read it, and connections
//! whose clients have to read.

use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::admission::Admitted;

/// Maximum bytes of a body that are handed to the connection at once.
const PART_BYTES: usize = 1 << 16;
/// How long a client may read nothing of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A body. Its bytes are in flight until the last part of it is handed to the connection.
pub(super) struct SentBody {
    rest: Bytes,
    _admitted: Option<Admitted>,
}

impl SentBody {
    /// A body of these bytes, which count for `admitted`.
    pub(super) fn new(bytes: Vec<u8>, admitted: Option<Admitted>) -> Self {
        let admitted = admitted.map(|admitted| admitted.answered(bytes.len() as u64));
        SentBody { rest: bytes.into(), _admitted: admitted }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PART_BYTES);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// A connection that breaks if its client does not read.
pub(super) struct ReadTimeout<S> {
    stream: S,
    /// The time at which it breaks, while bytes wait to be read.
    breaks: Option<Pin<Box<Sleep>>>,
}

impl<S> ReadTimeout<S> {
    pub(super) fn new(stream: S) -> Self {
        ReadTimeout { stream, breaks: None }
    }

    /// The result of a write, or an error if writes have been waiting for too long.
    fn check<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.breaks = None;
            return written;
        }
        let breaks = self.breaks.get_or_insert_with(|| Box::pin(sleep(READ_TIMEOUT)));
        breaks.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.check(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check(closed, context)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::serve::admission::Admission;

    #[test]
    fn bytes_are_in_flight_until_the_last_part() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let admission = Admission::new(1);
            let bytes: Vec<u8> = (0..200_000).map(|i| i as u8).collect();
            let mut body = SentBody::new(bytes.clone(), admission.admit(10).ok());
            assert_eq!((admission.requests(), admission.bytes()), (0, 200_000));
            assert_eq!(body.size_hint().exact(), Some(200_000));
            let mut sent = Vec::new();
            while let Some(frame) = body.frame().await {
                sent.extend(frame.unwrap().into_data().unwrap());
                assert_eq!(body.is_end_stream(), sent.len() == bytes.len());
                assert_eq!(admission.bytes(), 200_000);
            }
            drop(body);
            assert!(sent == bytes);
            assert_eq!(admission.bytes(), 0);
            assert!(SentBody::new(Vec::new(), None).is_end_stream());
        });
    }
}
