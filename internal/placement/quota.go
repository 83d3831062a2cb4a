package placement

// applyQuotas marks the models for which their tenant has no room. A tenant keeps the models
// with the most requests.
func (b *builder) applyQuotas(quotas map[string]Quota) {
	if len(quotas) == 0 {
		return
	}
	order := b.sorted(func(x, y *Model, _, _ int32) int { return compareUse(y, x) })
	used := map[string]Quota{}
	for _, m := range order {
		tenant := b.models[m].Tenant
		quota, limited := quotas[tenant]
		if !limited {
			continue
		}
		w := &b.wants[m]
		next := used[tenant]
		next.Copies += w.Active + w.Spare
		next.Bytes += int64(w.Active+w.Spare) * b.models[m].Bytes
		next.Device += float64(b.models[m].deviceTime(w.Active)) * float64(w.Active) / 1e9
		if quota.allows(next) {
			used[tenant] = next
		} else {
			w.OverQuota = true
		}
	}
}

func (q Quota) allows(used Quota) bool {
	return (q.Bytes == 0 || used.Bytes <= q.Bytes) && (q.Copies == 0 || used.Copies <= q.Copies) && (q.Device == 0 || used.Device <= q.Device)
}
