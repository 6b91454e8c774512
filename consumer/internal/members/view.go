package members

import "slices"

// View is what a member knows of all.
type View struct {
	// Known is false until the first list is there.
	Known bool
	// Own are the partitions of this member, sorted; none while it leaves.
	Own []int
	// Members are all, this one included, by id. Those that leave are among them
	// until they have ended.
	Members []Member
}

// Live reports whether that member is there, be it that it leaves.
func (v View) Live(id string) bool {
	_, found := slices.BinarySearchFunc(v.Members, Member{ID: id}, byID)
	return found
}

// viewOf is the view of the member self.
func viewOf(all []Member, self string, partitions int) View {
	slices.SortFunc(all, byID)
	var ids []string
	for _, m := range all {
		if !m.Leaving {
			ids = append(ids, m.ID)
		}
	}
	return View{Known: true, Own: assign(ids, partitions)[self], Members: all}
}

// same reports whether two views say the same but for what members tell of
// themselves.
func (v View) same(w View) bool {
	return v.Known == w.Known && slices.Equal(v.Own, w.Own) &&
		slices.EqualFunc(v.Members, w.Members, func(a, b Member) bool { return a.ID == b.ID && a.Leaving == b.Leaving })
}
