package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-serving/shoal/internal/access"
)

var (
	budgetTotal     = desc("shoal_memory_budget_bytes", "Memory that all requests may hold together")
	budgetUsed      = desc("shoal_memory_budget_used_bytes", "Memory that requests are charged for now")
	budgetRejected  = desc("shoal_memory_budget_rejections_total", "Charges that did not fit the memory budget; each rejects a request")
	streamsReset    = desc("shoal_grpc_streams_reset_total", "gRPC calls that were reset, by reason: memory_budget (their message did not fit it), stalled (the client did not send or read) or stopping (of the server)", "reason")
	connectionsOpen = desc("shoal_connections", "TCP connections that are open, of all ports")
	connectionsOver = desc("shoal_connections_refused_total", "TCP connections that were closed because too many were open")
	unauthenticated = desc("shoal_unauthenticated_requests_total", "Requests that were refused because their caller could not be authenticated")
	cacheSize       = desc("shoal_cache_bytes", "Memory of cached responses, by kind: limit (what they may hold together) or used (what they hold)", "kind")
	cacheEntries    = desc("shoal_cache_responses", "Responses in the cache")
	cacheEvictions  = desc("shoal_cache_evictions_total", "Responses that left the cache to make room for others")
	demandLoads     = desc("shoal_demand_loads_total", "Loads that requests asked for, in mode demand, by outcome: success or failure", "outcome")
	demandEvictions = desc("shoal_demand_evictions_total", "Models that left memory for others, or because a client unloaded them, in mode demand")
	demandWaited    = desc("shoal_demand_waited_total", "Requests that waited for the load of their model, in mode demand")
	demandRefused   = desc("shoal_demand_refused_total", "Requests whose model was not loaded for them, in mode demand")
	demandModels    = desc("shoal_demand_models", "Models in mode demand, by state: known (all of the repository) or loaded (those in memory)", "state")
	demandMemory    = desc("shoal_demand_memory_bytes", "Memory of models in mode demand, by kind: limit (what they may hold together) or held (what they hold)", "kind")
	tenantRequests  = desc("shoal_tenant_requests_total", "Inference requests of a tenant that its limits admitted; the tenants beyond the first 100 are one tenant, other", "tenant")
	tenantRefused   = desc("shoal_tenant_refusals_total", "Inference requests that exceeded a limit of their tenant: rate, concurrency or bytes", "tenant", "limit")
	tenantInFlight  = desc("shoal_tenant_requests_in_flight", "Inference requests of a tenant that are not answered yet", "tenant")
	tenantBytes     = desc("shoal_tenant_bytes_in_flight", "Size of the inputs of these requests", "tenant")
	auditLost       = desc("shoal_audit_records_lost_total", "Records that could not be written to the audit log")
)

// limits collects how far what bounds the memory of requests is used.
type limits Options

// Describe implements [prometheus.Collector].
func (limits) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{budgetTotal, budgetUsed, budgetRejected, streamsReset, connectionsOpen, connectionsOver, cacheSize, cacheEntries, cacheEvictions, unauthenticated, auditLost, demandLoads, demandEvictions, demandWaited, demandRefused, demandModels, demandMemory, tenantRequests, tenantRefused, tenantInFlight, tenantBytes} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (l limits) Collect(out chan<- prometheus.Metric) {
	if l.Budget != nil {
		state := l.Budget.State()
		out <- prometheus.MustNewConstMetric(budgetTotal, prometheus.GaugeValue, float64(state.Total))
		out <- prometheus.MustNewConstMetric(budgetUsed, prometheus.GaugeValue, float64(state.Used))
		out <- counter(budgetRejected, state.Rejected)
	}
	if l.GRPC != nil {
		state := l.GRPC.State()
		out <- counter(streamsReset, state.OverBudget, "memory_budget")
		out <- counter(streamsReset, state.Stalled, "stalled")
		out <- counter(streamsReset, state.Refused, "stopping")
	}
	if l.Connections != nil {
		open, refused := l.Connections()
		out <- prometheus.MustNewConstMetric(connectionsOpen, prometheus.GaugeValue, float64(open))
		out <- counter(connectionsOver, refused)
	}
	if l.Cache != nil {
		state := l.Cache.State()
		out <- prometheus.MustNewConstMetric(cacheSize, prometheus.GaugeValue, float64(state.Size), "limit")
		out <- prometheus.MustNewConstMetric(cacheSize, prometheus.GaugeValue, float64(state.Used), "used")
		out <- prometheus.MustNewConstMetric(cacheEntries, prometheus.GaugeValue, float64(state.Entries))
		out <- counter(cacheEvictions, state.Evicted)
	}
	if l.Demand != nil {
		l.collectDemand(out)
	}
	if l.Access != nil {
		out <- counter(unauthenticated, l.Access.Refusals())
		out <- counter(auditLost, l.Access.Audit.Lost())
		for _, u := range l.Access.Tenants.Usage() {
			out <- counter(tenantRequests, u.Requests, u.Tenant)
			for limit, n := range u.Refused {
				out <- counter(tenantRefused, n, u.Tenant, access.Limit(limit).String())
			}
			out <- prometheus.MustNewConstMetric(tenantInFlight, prometheus.GaugeValue, float64(u.InFlight), u.Tenant)
			out <- prometheus.MustNewConstMetric(tenantBytes, prometheus.GaugeValue, float64(u.Bytes), u.Tenant)
		}
	}
}

// collectDemand collects what mode demand counts.
func (l limits) collectDemand(out chan<- prometheus.Metric) {
	c, ok := l.Demand()
	if !ok {
		return
	}
	out <- counter(demandLoads, c.Loads, "success")
	out <- counter(demandLoads, c.FailedLoads, "failure")
	out <- counter(demandEvictions, c.Evictions)
	out <- counter(demandWaited, c.Waited)
	out <- counter(demandRefused, c.Refused)
	out <- prometheus.MustNewConstMetric(demandModels, prometheus.GaugeValue, float64(c.Models), "known")
	out <- prometheus.MustNewConstMetric(demandModels, prometheus.GaugeValue, float64(c.Loaded), "loaded")
	out <- prometheus.MustNewConstMetric(demandMemory, prometheus.GaugeValue, float64(c.Memory), "limit")
	out <- prometheus.MustNewConstMetric(demandMemory, prometheus.GaugeValue, float64(c.Held), "held")
}
