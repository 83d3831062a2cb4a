package placement

import "cmp"

// applyQuotas marks the models for which their tenant has no room. A tenant keeps the models
// with the most requests, and of those with equally many the ones that it had: otherwise others
// would take the place of a model that gets no requests for some seconds.
func (b *builder) applyQuotas(quotas map[string]Quota) {
	if len(quotas) == 0 {
		return
	}
	had := func(m int32) int {
		p := b.previous[m]
		return 2*btoi(p != nil && !p.OverQuota) + btoi(p != nil && p.InUse)
	}
	order := b.sorted(func(x, y *Model, i, j int32) int {
		return cmp.Or(cmp.Compare(y.Rate, x.Rate), had(j)-had(i), compareUse(y, x))
	})
	used := map[string]Quota{}
	for _, m := range order {
		tenant := b.models[m].Tenant
		quota, limited := quotas[tenant]
		if !limited {
			continue
		}
		w := &b.wants[m]
		after := func() Quota {
			q := used[tenant]
			q.Copies += w.Active + w.Spare
			q.Bytes += int64(w.Active+w.Spare) * b.models[m].Bytes
			q.Device += float64(b.models[m].deviceTime(w.Active)) * float64(w.Active) / 1e9
			return q
		}
		if p := b.previous[m]; p != nil && p.Active > 0 && p.Active < w.Active && !quota.allows(after()) {
			w.Active, w.Spare = p.Active, spares(p.Active, b.zones) // no room for more
		}
		if w.OverQuota = !quota.allows(after()); !w.OverQuota {
			used[tenant] = after()
		}
	}
}

func (q Quota) allows(used Quota) bool {
	return (q.Bytes == 0 || used.Bytes <= q.Bytes) && (q.Copies == 0 || used.Copies <= q.Copies) && (q.Device == 0 || used.Device <= q.Device)
}
