//! What a switch answers to questions.

use punctual_model::Nanos;

use super::check::CheckResult;
use super::table::Selection;
use super::{Port, Switch};
use crate::error_code::BadRequest;
use crate::multipart::{
    AggregateStats, FlowStats, FlowStatsRequest, GroupCapabilities, GroupFeatures, MeterFeatures,
    PortStats, QueueStats, SwitchDesc, TableStats,
};
use crate::wire::Wire;
use crate::{
    GroupId, Message, MeterId, MultipartBody, MultipartReply, MultipartRequest, PortNo, QueueId,
    TableId, Text, Xid,
};

/// Bytes of lists in one part of an answer, unless one item takes more.
const PART: usize = 16 * 1024;

impl Switch {
    #[expect(clippy::too_many_lines, reason = "one arm for each kind of statistics")]
    pub(super) fn report(
        &mut self,
        xid: Xid,
        request: &MultipartRequest,
        now: Nanos,
    ) -> CheckResult {
        use MultipartBody as Body;
        use MultipartRequest as Request;
        match request {
            Request::Desc => {
                let desc = SwitchDesc {
                    manufacturer: Text::new("Punctual"),
                    hardware: Text::new("none"),
                    software: Text::new("fake switch"),
                    serial: Text::new("0"),
                    datapath: Text::new(&self.datapath.to_string()),
                };
                self.say(xid, false, Body::Desc(Box::new(desc)));
            }
            Request::Flow(request) => self.list(xid, self.flows(request, now), Body::Flow),
            Request::Aggregate(request) => {
                let flows = self.flows(request, now);
                let sums = AggregateStats {
                    packets: flows.iter().map(|flow| flow.packets).sum(),
                    bytes: flows.iter().map(|flow| flow.bytes).sum(),
                    flows: flows.len() as u32,
                };
                self.say(xid, false, Body::Aggregate(sums));
            }
            Request::Table => {
                let stats = |id| {
                    let table = self.state.tables.get(&TableId(id));
                    TableStats {
                        table: TableId(id),
                        active: table.map_or(0, |table| table.len() as u32),
                        lookups: table.map_or(0, |table| table.lookups),
                        matched: table.map_or(0, |table| table.matched),
                    }
                };
                self.list(
                    xid,
                    (0..self.limits.tables).map(stats).collect(),
                    Body::Table,
                );
            }
            Request::PortStats(port) => {
                let ports = self.chosen(*port)?;
                let stats = ports.map(|port| PortStats {
                    duration: (now - port.created).into(),
                    ..port.stats
                });
                self.list(xid, stats.collect(), Body::PortStats);
            }
            Request::Queue(request) => {
                let (ports, asked) = (self.chosen(request.port)?, request.queue);
                let stats: Vec<_> = ports
                    .flat_map(|port| port.queues.values().map(|queue| (port.created, queue)))
                    .filter(|(_, queue)| asked == QueueId::ALL || queue.queue == asked)
                    .map(|(created, queue)| QueueStats {
                        duration: (now - created).into(),
                        ..*queue
                    })
                    .collect();
                if stats.is_empty() && asked != QueueId::ALL {
                    return Err(crate::error_code::QueueOpFailed::BadQueue.into());
                }
                self.list(xid, stats, Body::Queue);
            }
            Request::Group(asked) => {
                let groups = self.state.groups.iter();
                let stats = groups
                    .filter(|(id, _)| *asked == GroupId::ALL || *asked == **id)
                    .map(|(id, group)| {
                        let tables = self.state.tables.values();
                        let flows = tables.flat_map(|table| table.entries());
                        let references = flows.filter(|entry| entry.leads_to(*id)).count();
                        group.stats(*id, references as u32, now)
                    });
                self.list(xid, stats.collect(), Body::Group);
            }
            Request::GroupDesc => {
                let groups = self.state.groups.iter();
                let descs = groups.map(|(id, group)| group.desc(*id)).collect();
                self.list(xid, descs, Body::GroupDesc);
            }
            Request::GroupFeatures => {
                let features = GroupFeatures {
                    types: 0xf,
                    capabilities: GroupCapabilities::SELECT_WEIGHT
                        | GroupCapabilities::SELECT_LIVENESS
                        | GroupCapabilities::CHAINING
                        | GroupCapabilities::CHAINING_CHECKS,
                    max_groups: [self.limits.groups as u32; 4],
                    // Output, VLAN, queue, group, time to live, set-field.
                    actions: [1 | 1 << 17 | 1 << 18 | 0x1f << 21; 4],
                };
                self.say(xid, false, Body::GroupFeatures(features));
            }
            Request::Meter(asked) => {
                let meters = self.state.meters.iter();
                let stats = meters
                    .filter(|(id, _)| *asked == MeterId::ALL || *asked == **id)
                    .map(|(id, meter)| {
                        let tables = self.state.tables.values();
                        let flows = tables.flat_map(|table| table.entries());
                        let users = flows.filter(|entry| entry.uses(*id)).count();
                        meter.stats(*id, users as u32, now)
                    });
                self.list(xid, stats.collect(), Body::Meter);
            }
            Request::MeterConfig(asked) => {
                let meters = self.state.meters.iter();
                let configs = meters
                    .filter(|(id, _)| *asked == MeterId::ALL || *asked == **id)
                    .map(|(id, meter)| meter.config(*id));
                self.list(xid, configs.collect(), Body::MeterConfig);
            }
            Request::MeterFeatures => {
                let features = MeterFeatures {
                    max_meters: self.limits.meters as u32,
                    band_types: 1 << 1 | 1 << 2,
                    capabilities: 0xf,
                    max_bands: u8::try_from(self.limits.bands).unwrap_or(u8::MAX),
                    max_color: 0,
                };
                self.say(xid, false, Body::MeterFeatures(features));
            }
            Request::PortDesc => {
                let ports = self.ports.values();
                let descs = ports.map(|port| port.desc.clone()).collect();
                self.list(xid, descs, Body::PortDesc);
            }
            Request::TableFeatures(_) => return Err(BadRequest::BadMultipart.into()),
            Request::Experimenter(_) => return Err(BadRequest::BadExperimenter.into()),
        }
        Ok(())
    }

    fn flows(&self, request: &FlowStatsRequest, now: Nanos) -> Vec<FlowStats> {
        let selection = Selection {
            matching: request.matching.clone(),
            out_port: request.out_port,
            out_group: request.out_group,
            cookie: request.cookie,
            cookie_mask: request.cookie_mask,
        };
        let tables = self.state.tables.iter();
        tables
            .filter(|(id, _)| request.table == TableId::ALL || request.table == **id)
            .flat_map(|(id, table)| {
                let meant = table.select(&selection, None).into_iter();
                meant.filter_map(|rank| table.get(rank).map(|entry| entry.stats(*id, now)))
            })
            .collect()
    }

    fn chosen(
        &self,
        asked: PortNo,
    ) -> Result<impl Iterator<Item = &Port>, crate::error_code::ErrorCode> {
        if asked != PortNo::ANY && !self.ports.contains_key(&asked) {
            return Err(BadRequest::BadPort.into());
        }
        let ports = self.ports.values();
        Ok(ports.filter(move |port| asked == PortNo::ANY || port.desc.port == asked))
    }

    /// A list in as many parts as it takes.
    fn list<T: Wire>(&mut self, xid: Xid, items: Vec<T>, body: fn(Vec<T>) -> MultipartBody) {
        let (mut part, mut bytes) = (Vec::new(), Vec::new());
        for item in items {
            let before = bytes.len();
            item.put(&mut bytes);
            if bytes.len() > PART && !part.is_empty() {
                self.say(xid, true, body(std::mem::take(&mut part)));
                bytes.drain(..before);
            }
            part.push(item);
        }
        self.say(xid, false, body(part));
    }

    fn say(&mut self, xid: Xid, more: bool, body: MultipartBody) {
        let reply = MultipartReply { more, body };
        self.answer(xid, Message::MultipartReply(reply));
    }
}
