package sqlite

// HoldGate takes the gate of a database as another process would, and returns
// what gives it back; false if it is not free.
func HoldGate(path string) (leave func() error, ok bool, err error) {
	g, err := openGate(path)
	if err != nil {
		return nil, false, err
	}
	if lock(g.file) != nil {
		return nil, false, g.file.Close()
	}
	return g.file.Close, true, nil
}
