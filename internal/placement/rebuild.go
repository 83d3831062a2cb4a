package placement

import "slices"

// usedDivisor is what part of the most used copy's requests makes another copy an active one.
// Spare copies get some, too: those that Envoys tried elsewhere before.
const usedDivisor = 10

// rebuild returns the plan that the nodes follow, as far as their reports show it: copies are
// where they are, those that get requests are active, and as many more as the number of all
// copies is planned for. The next reports then change it as any plan.
func (b *builder) rebuild() *Plan {
	held := make([]Placement, len(b.models))
	most := make([]float64, len(b.models))
	b.eachHeld(func(m, _ int, c *Loaded) { most[m] = max(most[m], c.Rate) })
	b.eachHeld(func(m, n int, c *Loaded) {
		used := c.Rate > 0 && c.Rate*usedDivisor >= most[m]
		held[m].Copies = append(held[m].Copies, Copy{b.nodes[n].Name, used})
		held[m].Active += btoi(used)
	})
	for m := range held {
		p := &held[m]
		p.Model, p.Active = b.models[m].Name, max(1, p.Active)
		for p.Active+1+spares(p.Active+1, b.zones) <= len(p.Copies) {
			p.Active++
		}
		p.InUse = p.Active >= minimumActive
	}
	return &Plan{Models: slices.DeleteFunc(held, func(p Placement) bool { return len(p.Copies) == 0 })}
}

// eachHeld calls do for each wanted model that a node holds or loads, in the order of the nodes.
func (b *builder) eachHeld(do func(m, n int, c *Loaded)) {
	index := b.index()
	for n := range b.nodes {
		for i := range b.nodes[n].Copies {
			if m, wanted := index[b.nodes[n].Copies[i].Model]; wanted {
				do(m, n, &b.nodes[n].Copies[i])
			}
		}
	}
}

// index returns the indexes of the models by name.
func (b *builder) index() map[string]int {
	index := make(map[string]int, len(b.models))
	for i := range b.models {
		index[b.models[i].Name] = i
	}
	return index
}
