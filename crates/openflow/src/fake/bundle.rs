//! Bundles of a switch: kept until they are committed, then done wholly or not at all.

use punctual_model::Nanos;

use super::Switch;
use super::check::CheckResult;
use crate::error_code::BundleFailed;
use crate::{
    BundleAdd, BundleControl, BundleControlType, BundleFlags, BundleId, Envelope, Message, Xid,
};

#[derive(Debug)]
pub(super) struct Bundle {
    flags: BundleFlags,
    closed: bool,
    messages: Vec<Envelope>,
}

impl Bundle {
    fn new(flags: BundleFlags) -> Self {
        Self {
            flags,
            closed: false,
            messages: Vec::new(),
        }
    }
}

impl Switch {
    pub(super) fn bundle_control(
        &mut self,
        xid: Xid,
        control: &BundleControl,
        now: Nanos,
    ) -> CheckResult {
        use BundleControlType as Type;
        let id = control.bundle;
        let done = match control.kind {
            Type::OpenRequest => {
                self.open_bundle(id, control.flags)?;
                Type::OpenReply
            }
            Type::CloseRequest => {
                let bundle = self.bundles.get_mut(&id).ok_or(BundleFailed::BadId)?;
                let wrong = match (bundle.closed, bundle.flags == control.flags) {
                    (true, _) => Some(BundleFailed::BundleClosed),
                    (_, false) => Some(BundleFailed::BadFlags),
                    _ => None,
                };
                if let Some(wrong) = wrong {
                    self.bundles.remove(&id);
                    return Err(wrong.into());
                }
                bundle.closed = true;
                Type::CloseReply
            }
            Type::CommitRequest => {
                let bundle = self.bundles.remove(&id).ok_or(BundleFailed::BadId)?;
                if bundle.flags != control.flags {
                    return Err(BundleFailed::BadFlags.into());
                }
                self.commit(&bundle.messages, now)?;
                Type::CommitReply
            }
            Type::DiscardRequest => {
                self.bundles.remove(&id).ok_or(BundleFailed::BadId)?;
                Type::DiscardReply
            }
            Type::OpenReply | Type::CloseReply | Type::CommitReply | Type::DiscardReply => {
                return Err(BundleFailed::BadType.into());
            }
        };
        let reply = BundleControl::new(id, done, control.flags);
        self.answer(xid, Message::BundleControl(reply));
        Ok(())
    }

    fn open_bundle(&mut self, id: BundleId, flags: BundleFlags) -> CheckResult {
        if self.bundles.remove(&id).is_some() {
            return Err(BundleFailed::BadId.into());
        }
        if self.bundles.len() >= self.limits.bundles {
            return Err(BundleFailed::OutOfBundles.into());
        }
        self.bundles.insert(id, Bundle::new(flags));
        Ok(())
    }

    /// Opens the bundle if it is not open.
    pub(super) fn bundle_add(&mut self, xid: Xid, add: &BundleAdd) -> CheckResult {
        if add.message.xid != xid {
            return Err(BundleFailed::MsgBadXid.into());
        }
        if !matches!(
            add.message.message,
            Message::FlowMod(_) | Message::GroupMod(_)
        ) {
            return Err(BundleFailed::MsgUnsup.into());
        }
        if !self.bundles.contains_key(&add.bundle) {
            self.open_bundle(add.bundle, add.flags)?;
        }
        let most = self.limits.bundled;
        let bundle = self
            .bundles
            .get_mut(&add.bundle)
            .ok_or(BundleFailed::BadId)?;
        let wrong = if bundle.closed {
            BundleFailed::BundleClosed
        } else if bundle.flags != add.flags {
            BundleFailed::BadFlags
        } else if bundle.messages.len() >= most {
            BundleFailed::MsgTooMany
        } else {
            bundle.messages.push((*add.message).clone());
            return Ok(());
        };
        self.bundles.remove(&add.bundle);
        Err(wrong.into())
    }

    /// Does all of it; if one message fails, says which, and is as before.
    fn commit(&mut self, messages: &[Envelope], now: Nanos) -> CheckResult {
        let (before, said) = (self.state.clone(), self.messages.len());
        for envelope in messages {
            let done = match &envelope.message {
                Message::FlowMod(change) => self.flow_mod(change, now),
                Message::GroupMod(change) => self.group_mod(change, now),
                _ => Err(BundleFailed::MsgUnsup.into()),
            };
            if let Err(code) = done {
                self.state = before;
                self.messages.truncate(said);
                self.refuse(envelope, code);
                return Err(BundleFailed::MsgFailed.into());
            }
        }
        Ok(())
    }
}
