//! A member of a scope of this process's own store: no network, and no signs of life.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Builder;
use std::time::Duration;

use xla_core::Result;

use super::{Event, Life, Link, Membership, call, expelled};
use crate::Node;
use crate::hub::{Notice, Outbox};
use crate::queue::Popped;

/// A member of a scope of this process's own store.
pub(crate) fn join(
    node: Arc<Node>,
    outbox: Arc<Outbox>,
    scope: String,
    member: usize,
    on_event: impl Fn(Event) + Send + Sync + 'static,
) -> Result<Membership> {
    let life = Arc::new(Life::default());
    let membership = Membership {
        link: Link::Local {
            node: Arc::clone(&node),
            scope: scope.clone(),
            member,
        },
        life: Arc::clone(&life),
    };
    let listener = Builder::new()
        .name("xla-store-events".into())
        .spawn(move || {
            life.lock().listener = Some(std::thread::current().id());
            loop {
                let event = match outbox.pop(Duration::from_secs(3600)) {
                    Popped::Item(notice) => event(notice),
                    Popped::Nothing => continue,
                    Popped::Closed => break,
                };
                if life.ended.load(Ordering::Acquire) {
                    break;
                }
                if let Event::Lost { reason } = &event {
                    life.lose(reason.clone());
                }
                if let Err(reason) = call(&on_event, event) {
                    node.fail(&scope, member, reason);
                }
            }
            life.finish();
        });
    match listener {
        Ok(_) => Ok(membership),
        Err(error) => Err(membership.error(error.to_string())),
    }
}

fn event(notice: Notice) -> Event {
    match notice {
        Notice::Message { from, bytes } => Event::Message {
            from,
            bytes: bytes.to_vec(),
        },
        Notice::Failed { member, reason } => Event::Failed {
            member,
            reason: reason.to_string(),
        },
        Notice::Left { member } => Event::Left { member },
        Notice::Expelled { reason } => Event::Lost {
            reason: expelled(&reason),
        },
    }
}
